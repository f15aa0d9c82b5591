"""The recorded program carries the author's names."""

import pytest

from shorthaul.relational.frontend.trace import read_declarations, trace
from tests.relational.programs import SIZES, attend, convolve, record


def test_values_have_the_authors_names():
    names = [step.name for step in record(attend).steps]
    assert {"value", "alpha", "sum", "out", "weight", "bias"} <= set(names)


def test_steps_know_their_lines():
    step = next(each for each in record(convolve).steps if each.operation == "linear")
    assert step.line.function == "convolve"
    assert (
        step.line.text
        == 'n.out += linear(e.source.x, weight[e.relation]) / e.count(within="relation")'
    )


def test_absent_arguments_are_none():
    def optional(g, x, *, seen):
        seen.append(x)
        raise StopIteration

    from shorthaul.relational import NodeFeature

    optional.__annotations__["x"] = NodeFeature("width")
    seen = []
    with pytest.raises(StopIteration):
        trace(optional, SIZES, {"seen": seen}, absent=("x",))
    assert seen == [None]


def test_declarations_are_read_from_text_too():
    assert list(read_declarations(convolve.function)) == ["x", "weight"]
