"""Shapes and spaces of results, and what is said when operands do not fit."""

import pytest

from shorthaul.errors import RelationalProgramError
from shorthaul.relational.ir.operations import broadcast_shapes
from shorthaul.relational.ir.program import Builder
from shorthaul.relational.ir.spaces import Space


@pytest.fixture
def make():
    make = Builder("small")
    make.input("x", (2, 4), Space.EDGE, "edge")
    make.input("y", (3,), Space.EDGE, "edge")
    make.input("n", (4,), Space.NODE, "node")
    make.input("w", (4, 5), Space.RELATION, "weight")
    make.input("h", (2, 4, 6), Space.RELATION, "weight")
    return make


@pytest.mark.parametrize(
    ("operation", "operands", "attributes", "shape", "space"),
    [
        ("linear", "xw", {"way": "relation", "transposed": False}, (2, 5), Space.EDGE),
        ("linear", "xh", {"way": "relation", "transposed": False}, (2, 6), Space.EDGE),
        ("outer", "xx", {"way": "relation", "heads": False}, (4, 4), Space.RELATION),
        ("outer", "xx", {"way": "relation", "heads": True}, (2, 4, 4), Space.RELATION),
        ("expand", "n", {"to": Space.EDGE, "way": "source"}, (4,), Space.EDGE),
        ("reduce", "x", {"kind": "max", "way": "target"}, (2, 4), Space.TARGET),
        ("sum", "x", {"axes": (0,)}, (1, 4), Space.EDGE),
        ("broadcast", "y", {"shape": (2, 3)}, (2, 3), Space.EDGE),
        ("reshape", "x", {"shape": (8,)}, (8,), Space.EDGE),
        ("transpose", "x", {}, (4, 2), Space.EDGE),
        ("slice", "x", {"axis": 1, "start": 1, "stop": 3}, (2, 2), Space.EDGE),
        ("place", "y", {"axis": 0, "start": 1, "size": 6}, (6,), Space.EDGE),
        ("concat", "xx", {"axis": 1}, (2, 8), Space.EDGE),
        ("restrict", "n", {}, (4,), Space.TARGET),
        ("count", "", {"of": Space.EDGE, "way": "target_pair"}, (), Space.TARGET_PAIR),
    ],
)
def test_results(make, operation, operands, attributes, shape, space):
    step = make.steps[make.add(operation, *operands, **attributes)]
    assert (step.shape, step.space) == (shape, space)


@pytest.mark.parametrize(
    ("operation", "operands", "attributes", "said"),
    [
        ("linear", "yw", {"way": "relation", "transposed": False}, "width 3, the matrix takes 4"),
        ("linear", "xw", {"way": "all", "transposed": False}, "over relation"),
        ("add", "xy", {}, "sizes \\[3, 4\\]"),
        ("add", "xn", {}, "edge and node"),
        ("exp", "xx", {}, "expected 1 operands"),
        ("reduce", "x", {"kind": "median", "way": "target"}, "median"),
        ("reshape", "x", {"shape": (7,)}, "8 elements"),
        ("expand", "x", {"to": Space.EDGE, "way": "source"}, "to node rows"),
        ("extend", "n", {}, "only target rows"),
        ("concat", "xy", {"axis": 0}, "same rows and widths"),
    ],
)
def test_operands_that_do_not_fit(make, operation, operands, attributes, said):
    with pytest.raises(RelationalProgramError, match=said):
        make.add(operation, *operands, **attributes)


def test_shapes_are_repeated_as_in_pytorch():
    assert broadcast_shapes((2, 1), (3,), ()) == (2, 3)
