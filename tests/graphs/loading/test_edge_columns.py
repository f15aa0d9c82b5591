"""Data of edges in batches: the rows of the very edges that were drawn, in every form of a batch."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import shorthaul as sh
from shorthaul.errors import SamplingError
from shorthaul.graphs import LinkLoader, MiniBatch, MiniBatchLoader, RelationalGraph
from shorthaul.relational import GATConv, HeteroConv

BUYS, SOLD, KNOWS = ("user", "buys", "item"), ("item", "sold", "user"), ("user", "knows", "user")
COUNTS = {"user": 12, "item": 9}


def _draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def _edges(relation: tuple[str, str, str], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack(
        [torch.randint(COUNTS[relation[end]], (25,), generator=generator) for end in (0, 2)]
    )


EDGES = {each: _edges(each, seed) for seed, each in enumerate((BUYS, SOLD, KNOWS))}
STARS = {
    BUYS: _draw(25, 3, seed=5),
    KNOWS: _draw(25, 2, seed=6),
}  # of different widths, SOLD has none
WEIGHTS = _draw(75, seed=4)
GRAPH = RelationalGraph.from_typed_edges(EDGES, COUNTS).with_data(
    edges={"weight": WEIGHTS, "stars": STARS}
)
NAMES = ["weight", "stars"]


def _batches(graph: RelationalGraph = GRAPH) -> Iterator[MiniBatch]:
    yield from MiniBatchLoader(graph, batch_size=6, fan_outs=[4, 3], edge_data=NAMES)
    yield from LinkLoader(graph, None, "buys", 9, [4, 3], edge_data=NAMES)


def _require_rows(batch: MiniBatch) -> None:
    assert batch.edge_data is not None
    for block, rows in zip(batch.blocks, batch.edge_data, strict=True):
        assert torch.equal(rows["weight"], WEIGHTS[block.edges.long()])
        assert [tuple(each) for each in rows["stars"]] == [BUYS, KNOWS]
        for number, relation in ((0, BUYS), (2, KNOWS)):
            places, own = rows["stars"][relation]
            assert torch.equal(places, (block.relations == number).nonzero()[:, 0])
            ids = block.edges[places].long() - 25 * number
            assert torch.equal(own, STARS[relation][ids])


def test_rows_are_those_of_the_blocks_edges() -> None:
    batches = [*_batches()]
    assert sum(each.blocks[0].num_edges for each in batches) > 100
    for batch in batches:
        _require_rows(batch)
        _require_rows(batch.to("cpu"))


def test_typed_blocks_have_them_by_relation() -> None:
    seen = set()
    for batch in _batches():
        for block in batch.to_hetero().blocks:
            assert set(block.edge_data) == set(NAMES)
            assert set(block.edge_data["weight"]) == set(block.edges)
            assert set(block.edge_data["stars"]) == set(block.edges) & {BUYS, KNOWS}
            for relation, ids in block.edges.items():
                assert torch.equal(block.edge_data["weight"][relation], WEIGHTS[ids.long()])
                if relation in STARS:
                    number = GRAPH.relations.index(relation)
                    own = block.edge_data["stars"][relation]
                    assert torch.equal(own, STARS[relation][ids.long() - 25 * number])
                    seen.add(relation)
    assert len(seen) == 2


def test_a_layer_with_attributes_of_edges_computes_what_it_does_on_the_whole_graph() -> None:
    torch.manual_seed(0)
    options = {"add_self_loops": False}
    layers = {
        BUYS: GATConv((4, 4), 4, edge_dim=3, **options),
        KNOWS: GATConv((4, 4), 4, edge_dim=2, **options),
        SOLD: GATConv((4, 4), 4, **options),
    }
    layer = HeteroConv(layers).double()
    x = {name: _draw(count, 4, seed=8) for name, count in COUNTS.items()}
    whole = layer(x, EDGES, edge_attr_dict=STARS)
    expected = torch.cat([whole["user"], whole["item"]])
    for batch in MiniBatchLoader(GRAPH, x, batch_size=8, fan_outs=[-1], edge_data="stars"):
        typed = batch.to_hetero()
        (block,) = typed.blocks
        assert typed.x_dict is not None
        attributes = block.edge_data["stars"]
        out = layer(block.pairs(typed.x_dict), block.edge_index_dict, edge_attr_dict=attributes)
        torch.testing.assert_close(typed.seeds(out), expected[batch.seeds.long()])


def test_rows_on_disk_are_read_as_they_are_needed(tmp_path: Path) -> None:
    count = 20_000
    rows = torch.arange(2.0 * count).view(count, 2)
    sh.save_features(tmp_path / "stars.npy", rows)
    ends = torch.arange(count) % 500
    graph = RelationalGraph.from_edges(ends, ends.flip(0))
    graph = graph.with_data(edges={"stars": sh.open(tmp_path / "stars.npy")})
    loader = MiniBatchLoader(graph, None, seeds=[3], fan_outs=[2], prefetch=0, edge_data="stars")
    with sh.meter() as meter:
        (batch,) = loader
    assert batch.edge_data is not None
    assert torch.equal(batch.edge_data[0]["stars"], rows[batch.blocks[0].edges.long()])
    assert 0 < meter.read_bytes < 20_000


def test_rows_in_memory_are_counted() -> None:
    loader = MiniBatchLoader(GRAPH, batch_size=21, fan_outs=[-1], prefetch=0, edge_data="weight")
    with sh.meter() as meter:
        (batch,) = loader
    assert batch.blocks[0].num_edges == 75
    assert meter.moved_bytes >= 75 * 8


def test_a_sample_of_a_worker_finds_its_rows() -> None:
    loader = MiniBatchLoader(GRAPH, batch_size=6, fan_outs=[4], edge_data=NAMES)
    sample = pickle.loads(pickle.dumps(loader.samples()[1]))
    _require_rows(loader.complete(sample))


def test_nothing_is_brought_that_nobody_asked_for() -> None:
    (batch,) = MiniBatchLoader(GRAPH, batch_size=21, fan_outs=[4])
    assert batch.edge_data is None
    assert batch.to_hetero().blocks[0].edge_data == {}


def test_data_that_the_graph_has_not_are_named() -> None:
    with pytest.raises(SamplingError) as caught:
        MiniBatchLoader(GRAPH, edge_data="price")
    assert str(caught.value) == (
        "the graph has no edge data 'price'; it has `weight`, `stars`.\n"
        "  `graph.with_data(edges={'price': rows})` gives it some."
    )
    with pytest.raises(SamplingError, match="it has none"):
        LinkLoader(RelationalGraph.from_edges([0], [1]), edge_data="price")
