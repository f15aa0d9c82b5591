"""What is inconsistent is found, and the stage that made it is named."""

from dataclasses import replace

import pytest

from shorthaul.errors import CompilerDefectError
from shorthaul.relational import passes
from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.verify import verify_program
from shorthaul.relational.lowering.kernels import RowLoop, lower, operands_of, results_of
from shorthaul.relational.lowering.verify import verify_plan, verify_reads
from shorthaul.relational.passes import run_passes
from shorthaul.relational.passes.differentiate import differentiate
from shorthaul.relational.planning.recompute import find_again
from tests.relational.programs import LAYERS, attend, record, sample_graph, sizes_of


def _plan():
    program = record(attend)
    sizes = sizes_of(sample_graph())
    *_, (_, forward) = run_passes(program, sizes)
    inputs = [step.name for step in program.inputs]
    *_, (_, whole) = run_passes(differentiate(forward, inputs), sizes)
    outputs = whole.output_values()[:1]
    return lower(whole, outputs), outputs


def _without(program, name):
    steps = tuple(step for step in program.steps if step.name != name)
    return Program(program.name, steps, program.outputs)


def _changed(program, name, **changes):
    steps = tuple(replace(step, **changes) if step.name == name else step for step in program.steps)
    return Program(program.name, steps, program.outputs)


@pytest.mark.parametrize("definition", LAYERS.values(), ids=LAYERS)
def test_what_is_sound_passes(definition):
    program = record(definition)
    assert verify_program(program, "trace", program) is program


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (lambda p: _without(p, "value"), r"reads `value`, which nothing has made"),
        (lambda p: replace(p, steps=(*p.steps, p.steps[-1])), "`out` is made twice"),
        (lambda p: replace(p, steps=p.steps[::-1]), "which nothing has made by then"),
        (lambda p: _without(p, "out"), "the result `out` is `out`, which nothing makes"),
        (lambda p: _changed(p, "value", shape=(7,)), r"`value` is \(7,\) per edge, and `linear`"),
        (lambda p: _changed(p, "out", space=Space.NODE), "per node, and `add` gives"),
        (lambda p: _changed(p, "alpha", operands=("x", "weight")), "`alpha` is not sound"),
        (lambda p: replace(p, outputs=()), "the result `out` has become another"),
        (lambda p: replace(p, outputs=(("out", "sum"),)), "the result `out` has become another"),
    ],
)
def test_a_broken_program_is_found(break_it, problem):
    program = record(attend)
    with pytest.raises(CompilerDefectError, match=problem) as found:
        verify_program(break_it(program), "break_it", program)
    assert "after `break_it`, the compiled layer `attend`" in str(found.value)


def test_an_input_that_is_gone_is_found():
    program = record(LAYERS["convolve"])
    step = replace(program["x"], name="other")
    rest = [
        replace(each, operands=tuple("other" if o == "x" else o for o in each.operands))
        for each in program.steps
    ]
    changed = replace(program, steps=tuple(step if e.name == "x" else e for e in rest))
    with pytest.raises(CompilerDefectError, match="the input `x` is gone"):
        verify_program(changed, "rename", program)


def test_a_pass_that_loses_a_value_is_named(monkeypatch):
    def lose(program, sizes):
        return _without(program, "value")

    monkeypatch.setattr(passes, "PIPELINE", (*passes.PIPELINE[:2], lose))
    with pytest.raises(CompilerDefectError, match="after `lose`, the compiled layer `attend`"):
        list(run_passes(record(attend), sizes_of(sample_graph())))


def test_a_sound_plan_passes():
    plan, outputs = _plan()
    assert verify_plan(plan, "lower", outputs) is plan


@pytest.mark.parametrize("part", ["forward", "backward"])
def test_every_kernel_is_missed(part):
    """Without any one kernel, something is not made that is read or returned."""
    plan, outputs = _plan()
    works = getattr(plan, part)
    for number, work in enumerate(works):
        broken = replace(plan, **{part: works[:number] + works[number + 1 :]})
        with pytest.raises(CompilerDefectError, match="which no kernel has made or kept by then"):
            verify_plan(broken, f"losing {results_of(work)}", outputs)


def test_every_saved_value_is_missed():
    plan, outputs = _plan()
    for name in plan.saved:
        kept = tuple(each for each in plan.saved if each != name)
        with pytest.raises(CompilerDefectError, match=f"`{name}`, which no kernel"):
            verify_plan(replace(plan, saved=kept), "keep_within", outputs)
        again = find_again(plan, [name])
        verify_plan(replace(plan, saved=kept, again=again), "keep_within", outputs)
        with pytest.raises(CompilerDefectError, match="which no kernel"):
            verify_plan(replace(plan, saved=kept, again=again[:-1]), "keep_within", outputs)


def test_kernels_in_another_order_are_found():
    plan, outputs = _plan()
    with pytest.raises(CompilerDefectError, match="which no kernel has made"):
        verify_plan(replace(plan, forward=plan.forward[::-1]), "shuffle", outputs)


def test_a_loop_that_reads_what_it_has_not_made_is_found():
    plan, outputs = _plan()
    number = next(
        n for n, work in enumerate(plan.forward) if isinstance(work, RowLoop) and work.fine
    )
    work = plan.forward[number]
    turned = replace(work, results=work.results[::-1])
    works = (*plan.forward[:number], turned, *plan.forward[number + 1 :])
    with pytest.raises(CompilerDefectError, match="that its own loop has yet to make"):
        verify_plan(replace(plan, forward=works), "turn", outputs)


def test_a_text_that_reads_what_the_plan_does_not_know_is_found():
    plan, _ = _plan()
    work = next(work for work in plan.forward if isinstance(work, RowLoop))
    verify_reads(plan, work, operands_of(work, plan.program, set(plan.stored)), "emit C++")
    with pytest.raises(CompilerDefectError, match=r"after `emit C.*reads `x`, which is none of"):
        verify_reads(plan, work, ["x"], "emit C++")
