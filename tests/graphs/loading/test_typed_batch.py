"""Batches by types: the same edges, and layers of many types that compute what they do on the whole graph."""

import pytest
import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs import Block, LinkLoader, MiniBatch, MiniBatchLoader, RelationalGraph
from shorthaul.relational import HeteroConv, HGTConv, SAGEConv

TYPES = [("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user")]
COUNTS = {"user": 12, "item": 9, "shop": 3}  # nothing leads to shops


def _edges(relation: tuple[str, str, str], number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    ends = [torch.randint(COUNTS[relation[at]], (25,), generator=generator) for at in (0, 2)]
    return torch.stack(ends)


EDGES = {each: _edges(each, number) for number, each in enumerate(TYPES)}
GRAPH = RelationalGraph.from_typed_edges(EDGES, COUNTS)
GENERATOR = torch.Generator().manual_seed(7)
X = {name: torch.randn(count, 4, generator=GENERATOR).double() for name, count in COUNTS.items()}
JOINED = torch.cat(list(X.values()))


def _layers() -> list[HeteroConv]:
    torch.manual_seed(3)
    return [HeteroConv({each: SAGEConv((4, 4), 4) for each in TYPES}).double() for _ in range(2)]


def _run_whole(layers: list[HeteroConv]) -> torch.Tensor:
    x = X
    for layer in layers:
        x = layer(x, EDGES)
    return torch.cat([x["user"], x["item"]])


SEEDS = torch.tensor([20, 3, 12, 0, 5, 14])


@pytest.mark.parametrize("features", [X, JOINED], ids=["by type", "joined"])
def test_layers_compute_what_they_do_on_the_whole_graph(features: object) -> None:
    layers = _layers()
    expected = _run_whole(layers)[SEEDS]
    loader = MiniBatchLoader(GRAPH, features, seeds=SEEDS, batch_size=4, fan_outs=[-1, -1])
    places = torch.split(torch.arange(6), 4)
    for batch, own in zip(loader, places, strict=True):
        typed = batch.to_hetero()
        assert typed.x_dict is not None
        x = typed.x_dict
        for layer, block in zip(layers, typed.blocks, strict=True):
            x = layer(block.pairs(x), block.edge_index_dict)
        torch.testing.assert_close(typed.seeds(x), expected[own])
        x = typed.x_dict
        for layer, block in zip(layers, typed.blocks, strict=True):
            x = block.trim(layer(x, block.edge_index_dict))
        torch.testing.assert_close(typed.seeds(x), expected[own])
        x = typed.x_dict
        for layer in layers:  # as a model runs that knows of no blocks
            x = layer(x, typed.edge_index_dict)
        torch.testing.assert_close(typed.seeds(x), expected[own])


def test_a_layer_of_one_set_of_nodes() -> None:
    layer = HGTConv(4, 4, (["user", "item"], TYPES), 2).double()
    whole = layer({name: X[name] for name in ("user", "item")}, EDGES)
    (batch,) = MiniBatchLoader(GRAPH, X, seeds=SEEDS, fan_outs=[-1])
    typed = batch.to_hetero()
    (block,) = typed.blocks
    assert typed.x_dict is not None
    x = {name: typed.x_dict[name] for name in ("user", "item")}
    found = typed.seeds(layer(x, block.edge_index_dict))
    torch.testing.assert_close(found, torch.cat([whole["user"], whole["item"]])[SEEDS])


def test_edges_are_those_of_the_block_with_their_ids() -> None:
    for batch in LinkLoader(GRAPH, JOINED, "buys", batch_size=7, fan_outs=[3, 2]):
        for block, typed in zip(batch.blocks, batch.to_hetero().blocks, strict=True):
            nodes = {name: block.source_nodes[places] for name, places in typed.positions.items()}
            assert sum(len(each) for each in typed.edges.values()) == block.num_edges
            for relation, (source, target) in typed.edge_index_dict.items():
                ids = typed.edges[relation].long()
                assert torch.equal(nodes[relation[0]][source].long(), GRAPH.source[ids].long())
                assert torch.equal(nodes[relation[2]][target].long(), GRAPH.target[ids].long())
                assert bool((target < typed.num_targets[relation[2]]).all())
                assert {GRAPH.relations[int(each)] for each in GRAPH.relation[ids]} <= {relation}
    (first, *_) = LinkLoader(GRAPH, None, "buys", batch_size=7, fan_outs=[1])
    assert first.to_hetero().x_dict is None


def test_seeds_that_nothing_leads_to_are_named() -> None:
    (batch,) = MiniBatchLoader(GRAPH, X, seeds=[0, 22], fan_outs=[-1])
    typed = batch.to_hetero()
    (block,) = typed.blocks
    assert typed.x_dict is not None
    out = _layers()[0](block.pairs(typed.x_dict), block.edge_index_dict)
    with pytest.raises(SamplingError, match="targets of type shop: no relation leads to them"):
        typed.seeds(out)


def test_a_batch_without_types_or_blocks_is_refused() -> None:
    empty: list[Block] = []
    with pytest.raises(SamplingError, match="without blocks"):
        MiniBatch(0, SEEDS, SEEDS, empty, None, None).to_hetero()
    (batch,) = MiniBatchLoader(GRAPH, seeds=SEEDS, fan_outs=[1])
    with pytest.raises(SamplingError, match="without types of its graph"):
        MiniBatch(0, SEEDS, SEEDS, batch.blocks, None, None).to_hetero()
