"""Positions of elements in rows, and names that are never words of C++."""

from shorthaul.relational.backends.cpp.emit_values import Place, aligned, c_name, flat, for_axis


def test_positions_in_a_row():
    assert flat((2, 3), ["i0", "i1"]) == "i0 * 3 + i1"
    assert flat((2, 1), ["i0", "0"]) == "i0"
    assert flat((), []) == "0"


def test_an_operand_that_is_repeated_stands_still():
    assert aligned((1, 3), ["i0", "i1"]) == ["0", "i1"]
    assert aligned((3,), ["i0", "i1"]) == ["i1"]


def test_names_and_loops():
    assert c_name("double") == "double_"
    assert for_axis(1, 3) == "for (int i1 = 0; i1 < 3; ++i1)"


def test_a_value_named_outside_is_found_inside():
    outside = Place(1)
    inside = Place(2, outside)
    outside.names["x"] = ("x_", False)
    inside.say("use")
    assert inside.find("x") == ("x_", False)
    assert outside.find("y") is None
    assert inside.lines == ["    use"]
