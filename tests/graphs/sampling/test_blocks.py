import pickle

import pytest
import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs import Block, NeighborSampler, RelationalGraph
from tests.graphs.sampled_graphs import random_graph


@pytest.fixture
def block() -> Block:
    graph = random_graph(40, 300, 2)
    return NeighborSampler(graph, [4]).sample(range(12)).blocks[0]


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


def test_targets_without_edges_get_zeros() -> None:
    graph = RelationalGraph.from_edges([0], [1], num_nodes=3)
    (block,) = NeighborSampler(graph, [2]).sample([2, 1]).blocks
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


def test_a_sample_moves_with_its_blocks(block: Block) -> None:
    graph = RelationalGraph.from_edges([0, 1], [1, 2], num_nodes=3)
    for disjoint in (False, True):
        moved = NeighborSampler(graph, [1, 1], disjoint=disjoint).sample([2, 1]).to("meta")
        tensors = [moved.seeds, moved.seed_rows, *(each.sources for each in moved.blocks)]
        tensors += [moved.trees] if disjoint else []
        assert {each.device.type for each in tensors} == {"meta"}
