"""Programs: printing, names, equal steps made once."""

import pytest

from shorthaul.relational.ir.program import Builder, needed_steps
from shorthaul.relational.ir.spaces import Space


def _program():
    make = Builder("small")
    make.input("x", (4,), Space.NODE, "node")
    make.input("weight", (4, 2), Space.RELATION, "weight")
    source = make.add("expand", "x", to=Space.EDGE, way="source")
    message = make.add("linear", source, "weight", way="relation", transposed=False, name="message")
    make.add("exp", message)
    out = make.add("reduce", message, kind="sum", way="target", name="out")
    return make.build([("out", out)])


def test_a_program_prints_one_line_a_step():
    assert _program().text() == (
        "program small\n"
        "  x       = input {kind=node}                                     : 4 over node\n"
        "  weight  = input {kind=weight}                                   : 4 2 over relation\n"
        "  expand  = expand x {to=edge, way=source}                        : 4 over edge\n"
        "  message = linear expand, weight {transposed=False, way=relation} : 2 over edge\n".replace(
            "node}                                     :",
            "node}                                      :",
        )
        .replace(
            "weight}                                   :",
            "weight}                                    :",
        )
        .replace("source}                        :", "source}                         :")
        + "  exp     = exp message                                            : 2 over edge\n"
        "  out     = reduce message {kind=sum, way=target}                  : 2 over target\n"
        "  return out"
    )


def test_an_equal_step_is_not_made_again():
    make = Builder("twice")
    make.input("x", (4,), Space.NODE, "node")
    assert make.add("exp", "x") == make.add("exp", "x")
    assert make.add("relu", "x", name="exp") == "exp_1"  # another step, so another name


def test_a_name_is_given_once():
    make = Builder("twice")
    make.input("x", (4,), Space.NODE, "node")
    with pytest.raises(ValueError, match="made twice"):
        make.keep(make.steps["x"])


def test_needed_steps_leave_out_what_nobody_reads():
    program = _program()
    kept = [step.name for step in needed_steps(program, ["out"])]
    assert kept == ["x", "weight", "expand", "message", "out"]
    assert [step.name for step in program.users()["message"]] == ["exp", "out"]


def test_a_missing_attribute_is_named():
    with pytest.raises(KeyError, match="color"):
        _program()["out"]["color"]
    assert _program()["out"].get("color", 3) == 3


def test_a_step_of_another_program_is_reused_once_and_under_a_free_name():
    before = _program()
    make = Builder("again", before.inputs)
    assert make.reuse(before["expand"]) == "expand"
    assert make.steps["expand"] is before["expand"]
    assert make.reuse(before["expand"]) == "expand"
    make.add("exp", "x", name="message")
    assert make.reuse(before["message"]) == "message_1"
    assert make.steps["message_1"].operands == before["message"].operands
