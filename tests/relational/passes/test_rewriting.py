"""Going through a program, and leaving out what nobody needs."""

from shorthaul.relational.ir.program import drop_unused
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.passes.rewriting import rewrite
from tests.relational.programs import convolve, record, sample_graph, sizes_of


def test_making_everything_again_changes_nothing():
    program = record(convolve)
    assert rewrite(program, lambda rewriter, step: None) == program


def test_a_rule_replaces_a_step():
    program = record(convolve)
    made = rewrite(
        program, lambda w, step: w.new[step.operands[0]] if step.operation == "divide" else None
    )
    assert not any(step.operation in ("divide", "count") for step in made.steps)


def test_unused_steps_go_and_inputs_stay():
    program = record(convolve)
    empty = drop_unused(type(program)(program.name, program.steps, (("out", "x"),)))
    assert [step.name for step in empty.steps] == ["x", "weight"]


def test_sizes_are_rows():
    sizes = sizes_of(sample_graph())
    assert sizes[Space.EDGE] == 40
    assert sizes[Space.SOURCE_PAIR] <= 40
