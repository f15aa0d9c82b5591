"""Edges as seeds: against lists of edges, and what a batch may not contain."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.errors import GraphError
from shorthaul.graphs import (
    LinkBatch,
    LinkLoader,
    NegativeSampler,
    NeighborSampler,
    RelationalGraph,
)
from tests.graphs.sampled_graphs import random_graph

TYPED = [("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user")]


def shop(edges: int = 60, *, seed: int = 0) -> RelationalGraph:
    """Two types; every purchase has its reverse; edges have times."""
    generator = torch.Generator().manual_seed(seed)
    bought = torch.stack([torch.randint(count, (edges,), generator=generator) for count in (12, 9)])
    knows = torch.randint(12, (2, 30), generator=generator)
    graph = RelationalGraph.from_typed_edges(
        dict(zip(TYPED, (bought, bought.flip(0), knows), strict=True)), {"user": 12, "item": 9}
    )
    times = torch.randint(50, (edges,), generator=generator)
    late = torch.randint(50, (30,), generator=generator)
    return graph.with_data(
        edges={"time": torch.cat([times, times, late])},
        nodes={"born": torch.randint(10, (21,), generator=generator)},
    )


def triples(graph: RelationalGraph) -> list[tuple[int, int, int]]:
    return list(
        zip(*(each.tolist() for each in (graph.source, graph.target, graph.relation)), strict=True)
    )


def pairs_of(batch: LinkBatch) -> list[tuple[int, int, int]]:
    """The batch's pairs with global ids."""
    ends = batch.seeds[batch.sources.long()], batch.seeds[batch.targets.long()]
    return list(zip(*(each.tolist() for each in (*ends, batch.relations)), strict=True))


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 1000),
    st.sampled_from([None, "edge", "edge_and_reverse"]),
    st.sampled_from(["none", "target", "both"]),
    st.booleans(),
    st.integers(1, 3),
)
def test_every_edge_comes_once_with_what_was_asked(
    seed: int, leaves_out: str | None, replaces: str, is_temporal: bool, num_negatives: int
) -> None:
    graph = shop(seed=seed)
    known, times = triples(graph), graph.edge_data["time"]
    assert isinstance(times, torch.Tensor)
    kinds: dict[str, Any] = (
        {"node_times": "born", "edge_times": "time", "includes_equal": False} if is_temporal else {}
    )
    negatives = None
    if replaces != "none":
        born = {"node_times": "born"} if is_temporal else {}
        negatives = NegativeSampler(graph, replaces=replaces, seed=seed, **born)
    features = {name: torch.arange(len(graph.nodes_of(name)))[:, None] for name in graph.node_types}
    asked = [each for each in range(graph.num_edges) if int(times[each]) >= 10]
    loader = LinkLoader(
        graph,
        features,
        asked,
        13,
        NeighborSampler(graph, [4, 3], seed=seed, **kinds),
        negatives=negatives,
        num_negatives=num_negatives,
        leaves_out=leaves_out,
        shuffle=True,
        prefetch=0,
    )
    seen: list[int] = []
    for batch in loader:
        assert batch.edges is not None
        assert batch.labels is not None
        ids = batch.edges.tolist()
        seen += ids
        pairs = pairs_of(batch)
        count = num_negatives if negatives else 0
        assert batch.num_positives == len(ids)
        assert len(pairs) == len(ids) * (1 + count)
        assert pairs[: len(ids)] == [known[each] for each in ids]
        assert batch.labels.tolist() == [1.0] * len(ids) + [0.0] * (count * len(ids))
        for n, (source, target, relation) in enumerate(pairs[len(ids) :]):
            own = known[ids[n // count]]
            assert relation == own[2]
            assert (source, target, relation) not in known
            assert replaces == "both" or source == own[0]
            if is_temporal:
                assert batch.times is not None
                assert int(graph.node_data["born"][target]) <= int(times[ids[n // count]])
        followed = {int(edge) for block in batch.blocks for edge in block.edges}
        if leaves_out:
            assert not followed & set(ids)
        if leaves_out == "edge_and_reverse":
            back = {(each + 60) % 120 for each in ids if each < 120}
            assert not followed & back
        verify_times(graph, batch) if is_temporal else None
        for name in graph.node_types:
            assert isinstance(batch.features, dict)
            assert batch.type_positions is not None
            own_ids = batch.input_nodes[batch.type_positions[name]] - graph.nodes_of(name).start
            assert batch.features[name][:, 0].tolist() == own_ids.tolist()
    assert sorted(seen) == asked


def verify_times(graph: RelationalGraph, batch: LinkBatch) -> None:
    """No edge of a tree has the moment of its seed, or a later one."""
    assert batch.trees is not None
    assert batch.times is not None
    moment = {}
    for rows in (batch.sources, batch.targets):
        for row, time in zip(rows.tolist(), batch.times.tolist(), strict=True):
            assert moment.setdefault(row, time) == time
    times = graph.edge_data["time"]
    assert isinstance(times, torch.Tensor)
    for block in batch.blocks:
        sources, _ = block.edge_index()
        for edge, tail in zip(block.edges.tolist(), sources.tolist(), strict=True):
            assert int(times[edge]) < moment[int(batch.trees[tail])]


def test_negatives_share_the_trees_of_their_positives() -> None:
    graph = random_graph(50, 300)
    loader = LinkLoader(
        graph,
        None,
        [5, 6],
        2,
        NeighborSampler(graph, [2], disjoint=True),
        negatives=NegativeSampler(graph),
        num_negatives=4,
    )
    (batch,) = loader
    assert len(batch.seeds) == 2 + 2 + 8
    assert batch.sources.tolist() == [0, 1, 0, 0, 0, 0, 1, 1, 1, 1]


def test_batches_are_the_same_for_a_seed_and_from_workers() -> None:
    graph = random_graph(60, 500, 2)

    def make(**more: Any) -> LinkLoader:
        return LinkLoader(
            graph,
            torch.arange(60.0)[:, None],
            batch_size=100,
            fan_outs=[3, 2],
            negatives=NegativeSampler(graph, exponent=0.75),
            leaves_out="edge",
            shuffle=True,
            seed=3,
            **more,
        )

    def told(batch: LinkBatch) -> Any:
        assert isinstance(batch.features, torch.Tensor)
        return (
            pairs_of(batch),
            batch.features.tolist(),
            [each.edges.tolist() for each in batch.blocks],
        )

    first = [told(each) for each in make(prefetch=0)]
    assert [told(each) for each in make()] == first
    loader = make()
    workers = torch.utils.data.DataLoader(loader.samples(0), batch_size=None, num_workers=2)
    assert [told(loader.complete(each)) for each in workers] == first
    again = make(prefetch=0)
    list(again)
    assert [told(each) for each in again] != first  # the next epoch


def test_pairs_need_not_be_edges() -> None:
    graph = shop()
    users, items = torch.tensor([3, 4, 5]), torch.tensor([12, 13, 20])
    loader = LinkLoader(
        graph,
        pairs=(users, items),
        relations="buys",
        labels=torch.tensor([[2], [5], [1]]),
        negatives=NegativeSampler(graph),
        fan_outs=[-1],
        leaves_out="edge_and_reverse",
    )
    (batch,) = loader
    assert batch.labels is not None
    assert batch.labels.tolist() == [[2], [5], [1], [0], [0], [0]]
    assert batch.edges is None
    assert pairs_of(batch)[:3] == [(3, 12, 0), (4, 13, 0), (5, 20, 0)]
    asked = {(3, 12, 0), (4, 13, 0), (5, 20, 0), (12, 3, 1), (13, 4, 1), (20, 5, 1)}
    followed = {triples(graph)[int(edge)] for block in batch.blocks for edge in block.edges}
    assert followed
    assert not followed & asked


def test_a_relation_and_its_edges() -> None:
    graph = shop()
    for relation in ("knows", TYPED[2]):
        loader = LinkLoader(graph, None, relation, fan_outs=[1])
        (batch,) = loader
        assert batch.edges is not None
        assert batch.edges.tolist() == list(range(120, 150))
        assert (
            repr(batch)
            == f"LinkBatch(0: 30 edges, 0 negatives, {len(batch.input_nodes)} input nodes)"
        )
    moved = batch.to("meta")
    assert isinstance(moved, LinkBatch)
    assert moved.edges is not None
    assert {each.device.type for each in (moved.sources, moved.edges, moved.seeds)} == {"meta"}


def test_a_relation_of_a_graph_on_disk(tmp_path: Path) -> None:
    shop().save(tmp_path, ["relation", "target"])
    (batch,) = LinkLoader(RelationalGraph.open(tmp_path), None, "knows", fan_outs=[1])
    assert batch.edges is not None
    assert batch.edges.tolist() == list(range(120, 150))


def test_negatives_may_know_more_edges_than_the_loader() -> None:
    known = shop(seed=1)
    loader = LinkLoader(GRAPH, None, "buys", fan_outs=[1], negatives=NegativeSampler(known))
    (batch,) = loader
    assert not set(pairs_of(batch)[batch.num_positives :]) & set(triples(known))


def _only(types: dict[str, int]) -> RelationalGraph:
    return RelationalGraph.from_typed_edges(
        {("user", "sells", "item"): torch.tensor([[0], [0]])}, types
    )


GRAPH = shop()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"leaves_out": "all"}, "leaves_out must be None, 'edge' or 'edge_and_reverse', got 'all'"),
        ({"edges": [1], "pairs": ([0], [12])}, "pass `edges` or `pairs`"),
        ({"relations": "buys"}, "`relations` are those of `pairs`"),
        ({"edges": [150]}, "`edges` names edge 150 at position 0, but the graph has 150"),
        ({"edges": "gone"}, "there is no relation `gone`"),
        (
            {"pairs": ([0], [1]), "relations": "buys"},
            "a target of `user buys item` is of type `item`",
        ),
        ({"pairs": ([0], [12, 13]), "relations": "buys"}, "there are 1 sources, but 2 targets"),
        ({"times": [1] * 150}, "the links have times, but neither"),
        (
            {"edges": [1], "fan_outs": NeighborSampler(GRAPH, [1], node_times="born")},
            "pass `times`",
        ),
        (
            {"times": [1], "fan_outs": NeighborSampler(GRAPH, [1], edge_times="time")},
            "there are 150 links, but 1 times",
        ),
        ({"labels": torch.ones(3)}, "labels must have a row for each of 150 edges, got shape"),
        (
            {"labels": torch.zeros(150, dtype=torch.int64), "negatives": NegativeSampler(GRAPH)},
            "some labels are 0, which is the label of negatives",
        ),
        ({"batch_size": 0}, "batch_size must be a whole number from 1 on"),
        ({"fan_outs": NeighborSampler(GRAPH, [1]), "replace": True}, "those of the sampler"),
        ({"fan_outs": NeighborSampler(shop(), [1])}, "of another graph than the loader"),
        ({"negatives": NegativeSampler(random_graph())}, "a graph with other types of nodes"),
        ({"negatives": NegativeSampler(_only({"user": 13, "item": 9}))}, "other numbers of nodes"),
        ({"negatives": NegativeSampler(_only({"user": 12, "item": 9}))}, "other relations than"),
    ],
)
def test_what_does_not_fit_is_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(GraphError, match=told):
        LinkLoader(GRAPH, **options)
