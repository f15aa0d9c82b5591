"""Edges between nodes and their reverses: against lists of edges."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.errors import GraphError, SamplingError
from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.sampling.candidates.edges_between import (
    find_edges_between,
    find_reverses,
    read_reverses,
)
from tests.graphs.drawn_graphs import Edges, edge_lists
from tests.graphs.sampled_graphs import random_graph


@settings(max_examples=40, deadline=None)
@given(edge_lists(), st.data())
def test_edges_between_nodes_are_those_of_the_list(edges: Edges, data: st.DataObject) -> None:
    node, kind = st.integers(0, edges.nodes - 1), st.integers(0, edges.relations - 1)
    asked = data.draw(st.lists(st.tuples(node, node, kind), max_size=8))
    every = list(zip(edges.source, edges.target, edges.relation, strict=True))
    asked += every[:3]
    columns = torch.tensor(asked, dtype=torch.int64).reshape(-1, 3).unbind(1)
    which, ids = find_edges_between(edges.graph(), *columns)
    expected = [
        (at, number)
        for at, triple in enumerate(asked)
        for number, each in enumerate(every)
        if each == triple
    ]
    assert list(zip(which.tolist(), ids.tolist(), strict=True)) == expected


@settings(max_examples=30, deadline=None)
@given(edge_lists(), st.data())
def test_the_reverse_of_an_edge_is_its_own_copy(edges: Edges, data: st.DataObject) -> None:
    graph = edges.graph().with_inverses()
    if graph.num_edges == 0:
        return
    asked = data.draw(st.lists(st.integers(0, graph.num_edges - 1), max_size=8))
    ids = torch.tensor(asked, dtype=torch.int64)
    reverse_of = read_reverses(graph, None, graph.relation[ids])
    half = graph.num_edges // 2
    assert find_reverses(graph, ids, reverse_of).tolist() == [
        (each + half) % graph.num_edges for each in asked
    ]


def test_where_copies_do_not_match_all_reverses_are_found(tmp_path: Path) -> None:
    graph = RelationalGraph.from_edges([0, 0, 1, 1, 1, 2], [1, 1, 0, 0, 0, 2], relations=["r"])
    graph.save(tmp_path / "graph")
    for each in (graph, RelationalGraph.open(tmp_path / "graph")):
        same = torch.tensor([0])
        assert find_reverses(each, torch.tensor([1]), same).tolist() == [2, 3, 4]
        assert find_reverses(each, torch.tensor([5]), same).tolist() == [5]


def test_reverses_are_found_by_their_names() -> None:
    edge = torch.tensor([[0], [0]])
    names = [("a", "to", "b"), ("b", "rev_to", "a"), ("b", "of", "a"), ("a", "of_reversed", "b")]
    graph = RelationalGraph.from_typed_edges(dict.fromkeys(names, edge))
    assert read_reverses(graph, None, torch.arange(4)).tolist() == [1, 0, 3, 2]
    assert read_reverses(graph, {"to": "of"}, torch.tensor([0])).tolist() == [2, 1, 2, 3]
    lonely = RelationalGraph.from_typed_edges({names[0]: edge})
    with pytest.raises(SamplingError, match="the reverse of `a to b` is not known"):
        read_reverses(lonely, None, torch.tensor([0]))
    assert read_reverses(lonely, None, torch.tensor([], dtype=torch.int64)).tolist() == [0]
    with pytest.raises(GraphError, match="there is no relation `gone`"):
        read_reverses(graph, {"to": "gone"}, torch.tensor([0]))


def test_one_relation_is_its_own_reverse() -> None:
    graph = random_graph(5, 10)
    assert read_reverses(graph, None, torch.tensor([0])).tolist() == [0]
