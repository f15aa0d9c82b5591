"""Sums and means over a block's edges, by the kernels of rows."""

import pytest
import torch

from shorthaul.graphs import Block, NeighbourSampler
from shorthaul.graphs.block_sums import Ways, can_sum
from tests.graphs.sampled_graphs import random_graph


@pytest.fixture
def block() -> Block:
    graph = random_graph(40, 300, 2)
    return NeighbourSampler(graph, [4]).sample(range(12)).blocks[0]


def test_the_way_back_has_every_edge_once_in_order(block: Block) -> None:
    ways = Ways(block.pointers, block.sources, block.num_sources)
    targets = block.edge_index()[1]
    for source in range(block.num_sources):
        found = ways.back.ids[ways.back.pointers[source] : ways.back.pointers[source + 1]]
        assert found.tolist() == targets[block.sources == source].tolist()


def test_only_floating_tensors_on_cpus_are_summed_here() -> None:
    assert can_sum(torch.ones(2, 2))
    assert not can_sum(torch.ones(2, 2, dtype=torch.int64))
    assert not can_sum(torch.ones(2, 2, device="meta"))


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
    (block,) = NeighbourSampler(graph, [-1]).sample(range(3000)).blocks
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


def test_a_reduction_inside_torch_compile(block: Block) -> None:
    x = torch.randn(block.num_sources, 3)
    compiled = torch.compile(lambda each: block.reduce(each, "sum"), backend="eager")
    torch.testing.assert_close(compiled(x), block.reduce(x, "sum"))
