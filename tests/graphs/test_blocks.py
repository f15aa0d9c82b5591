import pickle

import pytest
import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs import Block, NeighbourSampler, RelationalGraph
from tests.graphs.sampled_graphs import random_graph


@pytest.fixture
def block() -> Block:
    graph = random_graph(40, 300, 2)
    return NeighbourSampler(graph, [4]).sample(range(12)).blocks[0]


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_reductions_and_their_gradients_equal_a_loop(block: Block, op: str) -> None:
    x = torch.randn(block.num_sources, 3, dtype=torch.float64, requires_grad=True)
    reduced = block.reduce(x, op)
    rows = []
    for target in range(block.num_targets):
        own = x[block.sources[block.pointers[target] : block.pointers[target + 1]].long()]
        whole = {"sum": own.sum(0), "mean": own.mean(0)}.get(op)
        rows.append(own.amax(0) if whole is None else whole)
    expected = torch.stack(rows)
    torch.testing.assert_close(reduced, expected)
    weight = torch.randn_like(reduced)
    (got,) = torch.autograd.grad((reduced * weight).sum(), x)
    (wanted,) = torch.autograd.grad((expected * weight).sum(), x)
    torch.testing.assert_close(got, wanted)


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


def test_targets_without_edges_get_zeros() -> None:
    graph = RelationalGraph.from_edges([0], [1], num_nodes=3)
    (block,) = NeighbourSampler(graph, [2]).sample([2, 1]).blocks
    assert block.reduce(torch.ones(block.num_sources, 2)).tolist() == [[0, 0], [1, 1]]


def test_wrong_arguments_are_refused(block: Block) -> None:
    with pytest.raises(SamplingError, match="op must be one of sum, mean, max, got 'min'"):
        block.reduce(torch.ones(block.num_sources, 2), "min")
    with pytest.raises(SamplingError, match="a row for each of the block's"):
        block.reduce(torch.ones(1, 2))


def test_a_block_travels_without_its_graph(block: Block) -> None:
    assert len(block.edges) == block.num_edges
    copy = pickle.loads(pickle.dumps(block))
    assert torch.equal(copy.sources, block.sources)
    with pytest.raises(SamplingError, match="does not know its edges"):
        _ = copy.edges


def test_a_block_moves_between_devices(block: Block) -> None:
    moved = block.to("meta")
    assert {each.device.type for each in (moved.sources, moved.pointers, moved.positions)} == {
        "meta"
    }
    assert moved.num_targets == block.num_targets
