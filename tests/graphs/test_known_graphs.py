"""A graph is found by its own tensors, for as long as it lives, and by no others."""

import copy
import gc

from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.known_graphs import find_known_graph


def _columns(graph):
    return graph.source, graph.target, graph.relation


def test_a_graph_is_found_by_its_columns():
    graph = RelationalGraph.from_edges([0, 1], [1, 2], [0, 1])
    other = copy.deepcopy(graph)
    assert find_known_graph(*_columns(graph)) is graph
    assert find_known_graph(*_columns(other)) is other
    assert find_known_graph(graph.source, other.target, graph.relation) is None
    assert find_known_graph(graph.source.clone(), graph.target, graph.relation) is None


def test_a_graph_that_is_gone_is_not_found():
    graph = RelationalGraph.from_edges([0, 1], [1, 2], [0, 1])
    columns = _columns(graph)
    del graph
    gc.collect()
    assert find_known_graph(*columns) is None
