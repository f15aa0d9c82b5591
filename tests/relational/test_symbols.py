"""What an author's function is given: nodes, edges, weights and features, and what they refuse."""

import pytest

from shorthaul.errors import LayerLanguageError
from shorthaul.relational.expressions import Recorder
from shorthaul.relational.spaces import Space
from shorthaul.relational.symbols import EdgeSymbol, GraphSymbol, NodeSymbol, WeightArgument


@pytest.fixture
def recorder():
    recorder = Recorder("small", __file__)
    recorder.node_values["x"] = recorder.make.input("x", (4,), Space.NODE, "node")
    recorder.make.input("weight", (4, 2), Space.RELATION, "weight")
    return recorder


def test_targets_read_the_first_nodes(recorder):
    target = NodeSymbol(recorder, Space.TARGET)
    assert target.x._space is Space.TARGET
    assert "restrict x" in repr(target.x)


def test_ends_of_edges_read_along_a_way(recorder):
    edge = EdgeSymbol(recorder)
    assert "expand x {to=edge, way=source}" in repr(edge.source.x)
    assert (edge.source.rows(), NodeSymbol(recorder, Space.NODE).rows()) == (Space.EDGE, Space.NODE)


def test_a_slice_is_multiplied_without_being_spread(recorder):
    edge = EdgeSymbol(recorder)
    weight = WeightArgument(recorder, "weight")
    assert "linear expand, weight {transposed=False, way=relation}" in repr(
        edge.source.x @ weight[edge.relation]
    )
    assert weight[edge.relation].shape == weight.shape == (4, 2)
    assert weight[edge.relation].reshape(8).shape == weight.reshape(-1).shape == (8,)
    assert [part.shape for part in weight[edge.relation].split(1, 1)] == [(4, 1), (4, 1)]


def test_a_targets_value_meets_the_relation_of_its_edges(recorder):
    weight, target = WeightArgument(recorder, "weight"), NodeSymbol(recorder, Space.TARGET)
    (edge,) = target.incoming_edges()
    assert (target.x @ weight[edge.relation])._space is Space.EDGE


def test_a_loop_that_is_left_early_is_over(recorder):
    graph = GraphSymbol(recorder)
    for _ in graph.edges():
        break
    assert [each.rows() for each in graph.nodes()] == [Space.NODE]


def test_what_an_edge_is_cannot_be_assigned(recorder):
    with pytest.raises(LayerLanguageError, match=r"e\.relation is what the edge is"):
        EdgeSymbol(recorder).relation = NodeSymbol(recorder, Space.NODE).x
