"""Sums and means over a block's edges, by the kernels of rows."""

from pathlib import Path

import pytest
import torch

import shorthaul as sh
from shorthaul.errors import DiskTensorError
from shorthaul.graphs import Block, NeighborSampler
from shorthaul.graphs.sampling.block_sums import reduce_block, spread_block
from tests.graphs.sampled_graphs import random_graph


@pytest.fixture
def block() -> Block:
    graph = random_graph(40, 300, 2)
    return NeighborSampler(graph, [4]).sample(range(12)).blocks[0]


def test_the_operators_keep_pytorchs_rules(block: Block) -> None:
    for is_mean in (False, True):
        x = torch.randn(block.num_sources, 3, requires_grad=True)
        torch.library.opcheck(reduce_block.overload, (x, block.pointers, block.sources, is_mean))
        gradient = torch.randn(block.num_targets, 3, requires_grad=True)
        torch.library.opcheck(
            spread_block.overload,
            (gradient, block.pointers, block.sources, block.num_sources, is_mean),
        )


def test_sums_over_a_table_in_memory_and_a_clear_error_over_one_on_disk(
    block: Block, tmp_path: Path
) -> None:
    x = torch.randn(block.num_sources, 3)
    assert torch.equal(block.reduce(sh.unified(x)), block.reduce(x))
    sh.save_features(tmp_path / "x.npy", x)
    with pytest.raises(DiskTensorError, match="Take the rows you need"):
        block.reduce(sh.open(tmp_path / "x.npy"))


def test_whole_numbers_and_other_devices_are_pytorchs(block: Block) -> None:
    nothing = torch.empty(block.num_sources, 3, device="meta")
    assert block.to("meta").reduce(nothing).shape == (block.num_targets, 3)
    with pytest.raises(RuntimeError, match="Float"):
        block.reduce(torch.ones(block.num_sources, 3, dtype=torch.int64))


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_gradients_of_reductions_of_any_order(block: Block, op: str) -> None:
    x = torch.randn(block.num_sources, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda each: block.reduce(each, op), x)
    assert torch.autograd.gradgradcheck(lambda each: block.reduce(each, op), x)


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_reductions_equal_pytorchs_embedding_bag(block: Block, op: str, dtype: torch.dtype) -> None:
    x = torch.randn(block.num_sources, 17).to(dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    expected = torch.nn.functional.embedding_bag(
        block.sources, wide, block.pointers, mode=op, include_last_offset=True
    )
    reduced = block.reduce(x, op)
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(reduced.double(), expected, rtol=tolerance, atol=tolerance)
    weight = torch.randn(reduced.shape).to(dtype)
    (got,) = torch.autograd.grad((reduced * weight).sum(), x)
    (wanted,) = torch.autograd.grad((expected * weight.double()).sum(), wide)
    torch.testing.assert_close(got.double(), wanted, rtol=4 * tolerance, atol=4 * tolerance)


def test_reductions_are_the_same_for_any_number_of_threads() -> None:
    graph = random_graph(4000, 60_000, 1)
    (block,) = NeighborSampler(graph, [-1]).sample(range(3000)).blocks
    x = torch.randn(block.num_sources, 40, requires_grad=True)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            reduced = block.reduce(x)
            found.append((reduced, *torch.autograd.grad(reduced.square().sum(), x)))
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, *found))


def test_a_reduction_and_its_gradient_inside_torch_compile(block: Block) -> None:
    x = torch.randn(block.num_sources, 3, requires_grad=True)
    compiled = torch.compile(lambda each: block.reduce(each), backend="aot_eager", fullgraph=True)
    found, expected = compiled(x), block.reduce(x)
    assert torch.equal(found, expected)
    weight = torch.randn(found.shape)
    gradients = (torch.autograd.grad((each * weight).sum(), x) for each in (found, expected))
    assert all(map(torch.equal, *gradients))


def test_a_reduction_inside_torch_func(block: Block) -> None:
    x = torch.randn(block.num_sources, 3, dtype=torch.float64)
    found = torch.func.grad(lambda each: block.reduce(each).square().sum())(x)
    tracked = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(block.reduce(tracked).square().sum(), tracked)
    assert torch.equal(found, expected)
