"""Where elements come from when steps only move them: indices, not tensors."""

from shorthaul.relational.backends.loop_order import SweepOrder
from shorthaul.relational.backends.triton.emit_values import Place, Types, ValueWriter
from shorthaul.relational.ir.program import Builder
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.lowering.kernels import RowLoop


def _write(build, exported=()):
    """The lines of a loop over nodes whose result `build` makes of x, six numbers a node."""
    make = Builder("p")
    x = make.input("x", (6,), Space.NODE, "node")
    result = build(make, x)
    program = make.build([("out", result)])
    order = SweepOrder(RowLoop(Space.NODE, None, None, [result]), program, {"x", result})
    values = ValueWriter(order, Types("tl.float16", "tl.float32"), frozenset(exported))
    place = Place(0, "row", "ROWS", mask="is_row")
    variable = values.name(result, place)
    return variable, place.lines, values


def test_names_come_from_the_program():
    variable, lines, values = _write(lambda make, x: make.add("relu", x, name="up"))
    assert variable == "up_"
    assert lines[-1] == "up_ = tl.where(x_ < 0, 0.0, x_)"
    assert lines[0].startswith("x_ = tl.load(in_x + row[:, None] * 6 + i0_6, mask=is_row[:, None]")
    assert values.frames[(6,)] == ["i0_6 = tl.arange(0, 8)[None, :]"]


def test_what_goes_to_memory_is_rounded_as_memory_rounds_it():
    _, lines, _ = _write(lambda make, x: make.add("relu", x, name="up"), exported={"up"})
    assert lines[-1] == "up_ = up_.to(tl.float16).to(tl.float32)"


def test_a_slice_of_memory_is_a_load_from_further_on():
    _, lines, _ = _write(lambda make, x: make.add("slice", x, axis=0, start=2, stop=5))
    (line,) = lines
    assert "row[:, None] * 6 + (i0_3 + 2)" in line
    assert "gather" not in line


def test_a_reshape_of_what_was_computed_is_a_gather():
    def build(make, x):
        pairs = make.add("reshape", x, shape=(2, 3))
        total = make.add("sum", pairs, axes=(0,))
        whole = make.add("broadcast", total, shape=(2, 3))
        return make.add("relu", make.add("reshape", whole, shape=(6,)))

    _, lines, _ = _write(build)
    assert "tl.gather(" in lines[-2]
    assert "tl.minimum(tl.maximum(" in lines[-2]  # what is rounded up reads inside, too


def test_dimensions_of_one_element_are_only_another_view():
    def build(make, x):
        column = make.add("reshape", make.add("relu", x), shape=(6, 1))
        return make.add("add", column, column)

    _, lines, _ = _write(build)
    assert any("tl.reshape(relu_, (ROWS, 8, 1))" in line for line in lines)
    assert not any("gather" in line for line in lines)
