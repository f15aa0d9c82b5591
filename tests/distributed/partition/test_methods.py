"""Cuts are whole, balanced, and cut fewer edges than chance."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.distributed.partition.methods import METHODS, place_nodes, weigh_nodes
from shorthaul.distributed.partition.streaming import (
    ROOM,
    _place_by_kernel,
    place_by_stream,
    place_plainly,
)
from shorthaul.errors import PartitionError
from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.inclusion.target_rows import TargetRows
from tests.distributed.part_folders import drawn_graph, typed_graph


def communities(count: int, size: int) -> RelationalGraph:
    """Rings of groups whose members know each other, in an order that mixes the groups."""
    generator = torch.Generator().manual_seed(3)
    names = torch.randperm(count * size, generator=generator)
    inner = torch.randint(size, (2, count, 12 * size), generator=generator)
    inner = (inner + torch.arange(count)[:, None] * size).flatten(1)
    return RelationalGraph.from_edge_index(names[inner], num_nodes=count * size)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_every_node_is_placed_and_parts_are_even(method: str, parts: int) -> None:
    if method == "metis":
        pytest.importorskip("pymetis")
    graph = drawn_graph(nodes=300, edges=3000)
    places = place_nodes(graph, parts, method, weigh_nodes(graph, {}, None))
    counts = torch.bincount(places.long(), minlength=parts)
    assert places.shape == (300,)
    assert counts.sum() == 300
    assert len(counts) == parts
    assert counts.max() <= 1.1 * 300 / parts


@pytest.mark.parametrize("method", ["stream", "metis"])
def test_groups_stay_together(method: str) -> None:
    if method == "metis":
        pytest.importorskip("pymetis")
    graph = communities(8, 50)
    places = place_nodes(graph, 4, method, weigh_nodes(graph, {}, None))
    cut = (places[graph.source.long()] != places[graph.target.long()]).float().mean()
    assert cut < 0.3  # 0.75 by chance


def test_ranges_keep_the_order_within_each_type() -> None:
    graph = typed_graph()
    places = place_nodes(graph, 3, "range", weigh_nodes(graph, {}, None))
    for name in graph.node_types:
        own = places[list(graph.nodes_of(name))]
        assert (own.diff() >= 0).all()
        assert torch.bincount(own.long(), minlength=3).max() <= len(own) // 3 + 1


def test_seeds_are_spread() -> None:
    graph = drawn_graph(nodes=400, edges=2000)
    seeds = torch.arange(100)  # all at one end
    places = place_nodes(graph, 4, "range", weigh_nodes(graph, {}, seeds))
    counts = torch.bincount(places[seeds].long(), minlength=4)
    assert counts.max() > 25  # ranges are of equal weight, and seeds weigh more
    weights = weigh_nodes(graph, {}, seeds)
    loads = torch.zeros(4, dtype=torch.int64).index_add_(0, places.long(), weights)
    assert loads.max() <= 1.02 * weights.sum() / 4 + weights.max()


def test_feature_bytes_weigh() -> None:
    graph = typed_graph()
    weights = weigh_nodes(graph, {"paper": 400, "author": 100}, None)
    assert abs(int(weights[graph.nodes_of("paper").start]) - 4 * int(weights[0])) <= 4


@settings(max_examples=20, deadline=None)
@given(
    st.integers(2, 40),
    st.integers(0, 120),
    st.integers(2, 5),
    st.integers(0, 10**6),
    st.integers(1, 3),
)
def test_the_kernel_places_as_plain_python_does(
    nodes: int, edges: int, parts: int, seed: int, passes: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(nodes, (2, edges), generator=generator)
    graph = RelationalGraph.from_edge_index(ends, num_nodes=nodes)
    weights = torch.randint(1, 500, (nodes,), generator=generator)
    room = int(ROOM * int(weights.sum()) / parts) + int(weights.max())
    found = []
    for place in (_place_by_kernel, place_plainly):
        places = torch.full((nodes,), -1, dtype=torch.int32)
        loads = torch.zeros(parts, dtype=torch.int64)
        for _ in range(passes):
            for piece in TargetRows(graph, piece_edges=7).pieces():
                place(piece, weights, places, loads, 12345.678, room)
        found.append((places, loads))
    assert found[0][0].equal(found[1][0])
    assert found[0][1].equal(found[1][1])
    by_part = torch.zeros(parts, dtype=torch.int64).index_add_(0, found[0][0].long(), weights)
    assert found[0][1].equal(by_part)


def test_pieces_do_not_change_the_cut() -> None:
    graph = drawn_graph()
    ones = torch.ones(graph.num_nodes, dtype=torch.int64)
    whole = place_by_stream(TargetRows(graph), 3, ones, passes=2)
    assert place_by_stream(TargetRows(graph, piece_edges=5), 3, ones, passes=2).equal(whole)


@pytest.mark.parametrize(
    ("parts", "method", "said"),
    [
        (0, "range", "from 1 to"),
        (True, "range", "from 1 to"),
        (61, "range", "60 nodes cannot be cut into 61 parts"),
        (2, "random", "method must be one of"),
    ],
)
def test_wrong_wishes_are_named(parts: int, method: str, said: str) -> None:
    graph = drawn_graph()
    with pytest.raises(PartitionError, match=said):
        place_nodes(graph, parts, method, weigh_nodes(graph, {}, None))
