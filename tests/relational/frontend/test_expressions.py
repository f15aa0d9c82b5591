"""Values while a layer is recorded: how they meet, and what they refuse."""

import pytest

from shorthaul.errors import LayerLanguageError, RelationalProgramError
from shorthaul.relational.frontend.expressions import (
    Expression,
    Recorder,
    as_expression,
    combine,
    ordered_spaces,
    reduce_edges,
    spread,
)
from shorthaul.relational.frontend.symbols import EdgeSymbol, NodeSymbol
from shorthaul.relational.ir.spaces import Space


@pytest.fixture
def recorder():
    recorder = Recorder("small", __file__)
    recorder.node_values["x"] = recorder.make.input("x", (4,), Space.NODE, "node")
    recorder.make.input("bias", (4,), Space.ONE, "weight")
    return recorder


def test_a_value_is_spread_to_meet_another(recorder):
    edge = EdgeSymbol(recorder)
    bias = Expression(recorder, "bias")
    assert combine("add", bias, edge.source.x)._space is Space.EDGE
    assert (1 + edge.target.x * 2)._space is Space.EDGE
    assert ordered_spaces(Space.ONE) < ordered_spaces(Space.EDGE)


def test_a_nodes_value_needs_an_end(recorder):
    with pytest.raises(LayerLanguageError, match="say which node is meant"):
        spread(Expression(recorder, "x"), Space.EDGE)


def test_reductions_give_values_of_targets_or_of_edges(recorder):
    edge = EdgeSymbol(recorder)
    assert reduce_edges(edge.source.x, "sum")._space is Space.TARGET
    assert reduce_edges(edge.source.x, "max", "relation")._space is Space.EDGE


def test_reshaping_finds_the_missing_width(recorder):
    value = NodeSymbol(recorder, Space.NODE).x
    assert value.reshape(2, -1).shape == (2, 2)
    with pytest.raises(LayerLanguageError, match="cannot be reshaped"):
        value.reshape(3, -1)
    with pytest.raises(LayerLanguageError, match="one -1 at most"):
        value.reshape(-1, -1)
    with pytest.raises(LayerLanguageError, match="do not make up"):
        value.split(1, 1)


def test_powers_are_products(recorder):
    value = NodeSymbol(recorder, Space.NODE).x
    assert repr(value**2).startswith("multiply = multiply x, x")
    assert repr(value**0.5).startswith("sqrt = sqrt x")
    assert value**1 is value
    assert repr(abs(value)).startswith("absolute")


def test_only_values_are_values(recorder):
    with recorder, pytest.raises(LayerLanguageError, match="got str 'x'") as caught:
        as_expression("x")
    assert "test_expressions.py:" in str(caught.value)


def _matrices(recorder, *shape):
    recorder.edge_values["m"] = recorder.make.input("m", shape, Space.EDGE, "edge")
    edge = EdgeSymbol(recorder)
    return edge.source.x, edge.m


def test_each_row_is_multiplied_by_a_matrix_of_its_own(recorder):
    x, m = _matrices(recorder, 12)
    made = x @ m.reshape(4, 3)
    assert (made.shape, made._space) == ((3,), Space.EDGE)
    assert (x.reshape(2, 2) @ m.reshape(2, 2, 3)).shape == (2, 3)  # head by head
    assert not any(step.operation == "linear" for step in recorder.make.steps.values())


def test_a_matrix_of_another_depth_is_refused(recorder):
    x, m = _matrices(recorder, 15)
    with pytest.raises(RelationalProgramError, match="vectors have width 4, the matrix takes 5"):
        x @ m.reshape(5, 3)
