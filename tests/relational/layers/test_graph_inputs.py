"""The same tensors give the same graph; changed or other tensors another."""

import torch

from shorthaul.graphs import RelationalGraph
from shorthaul.relational.layers.graph_inputs import (
    KEPT_GRAPHS,
    find_graph,
    find_typed_graph,
    glorot,
)


def test_a_graph_is_built_once():
    edges, kinds = torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1])
    graph = find_graph(edges, kinds, 3, 2)
    assert find_graph(edges, kinds, 3, 2) is graph
    assert find_graph(edges, kinds, 4, 2) is not graph
    edges[0, 0] = 2
    changed = find_graph(edges, kinds, 3, 2)
    assert changed is not graph
    assert changed.source.tolist() == [2, 1]


def test_a_graph_is_taken_as_it_is():
    graph = RelationalGraph.from_edges([0], [1])
    assert find_graph(graph, None, 2, 1) is graph


def test_few_graphs_are_kept():
    from shorthaul.relational.layers import graph_inputs

    for _ in range(2 * KEPT_GRAPHS):
        find_graph(torch.tensor([[0], [1]]), None, 2, 1)
    assert len(graph_inputs._kept) <= KEPT_GRAPHS


def test_relations_without_edges():
    relations = (("a", "x", "b"), ("b", "y", "a"))
    edges = {relations[1]: torch.tensor([[0], [1]])}
    graph = find_typed_graph(edges, {"a": 2, "b": 3}, relations)
    assert graph.edges_per_relation == (0, 1)
    assert find_typed_graph(edges, {"a": 2, "b": 3}, relations) is graph


def test_glorot_stays_within_its_limits():
    weight = torch.empty(3, 5, 7)
    glorot(weight)
    assert weight.abs().max() <= (6 / 12) ** 0.5
    assert weight.std() > 0.2
