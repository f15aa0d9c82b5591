"""Features and edges with types: one order, and names for what does not fit."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import RelationalGraph
from shorthaul.relational.inputs.typed import Metadata, read_typed_input, read_widths

METADATA = Metadata.read((["a", "b"], [["a", "x", "b"], ["b", "y", "a"]]))
X = {"b": torch.ones(3, 1), "a": torch.ones(2, 1)}
EDGES = {("b", "y", "a"): torch.tensor([[0, 2], [1, 1]])}


def test_the_layers_order_of_types_and_the_callers_relations():
    x, graph = read_typed_input(X, EDGES, METADATA)
    assert list(x) == ["a", "b"]
    assert graph.nodes_per_type == (2, 3)
    assert graph.relations == (("b", "y", "a"),)
    assert graph.source.tolist() == [2, 4]
    assert read_typed_input(X, EDGES, METADATA).graph is graph


def test_relations_without_edges_on_demand():
    _, graph = read_typed_input(X, EDGES, METADATA, every_relation=True)
    assert graph.relations == METADATA.edge_types
    assert graph.edges_per_relation == (0, 2)
    _, some = read_typed_input({"a": X["a"]}, {}, METADATA, every_relation=True)
    assert some.relations == ()


def test_a_graph_keeps_its_order():
    graph = RelationalGraph.from_typed_edges(EDGES, {"b": 3, "a": 2})
    found = read_typed_input({"a": X["a"], "b": X["b"]}, graph, METADATA)
    assert found.graph is graph
    assert list(found.x_dict) == ["b", "a"]


def test_widths():
    assert read_widths(4, METADATA) == {"a": 4, "b": 4}
    with pytest.raises(LayerArgumentError, match="no width for b"):
        read_widths({"a": 4}, METADATA)
    with pytest.raises(LayerArgumentError, match="'b': -1"):
        read_widths({"a": 4, "b": -1}, METADATA)


def test_what_does_not_fit_is_named():
    with pytest.raises(LayerArgumentError, match="c are unknown"):
        read_typed_input({**X, "c": X["a"]}, EDGES, METADATA)
    with pytest.raises(LayerArgumentError, match="needs features of `b`"):
        read_typed_input({"a": X["a"]}, EDGES, METADATA)
    with pytest.raises(LayerArgumentError, match=r"relation .*'z'.* is unknown"):
        read_typed_input(X, {("a", "z", "b"): EDGES["b", "y", "a"]}, METADATA)
    graph = RelationalGraph.from_typed_edges(EDGES, {"b": 3, "a": 5})
    with pytest.raises(LayerArgumentError, match="has 2 rows, but the graph has 5 nodes"):
        read_typed_input(X, graph, METADATA)
    with pytest.raises(LayerArgumentError, match="dict was given without edges"):
        read_typed_input(X, None, METADATA)
