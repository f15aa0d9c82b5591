"""Whether what the compiler made still hangs together: run after every pass and after lowering.

A pass that loses a value, or a plan in which a kernel reads what no kernel has made, would otherwise
be met in the middle of a user's step, or not at all. The checks read programs and plans, never tensors:
they take less time than the passes.

A program is sound if every value is made once, before it is read, with the shape and rows that its
operation gives, and if it has the inputs and results that it had. A plan is sound if its kernels can be
gone through as a run goes through them: each finds what it reads among the inputs, what was saved, and
what earlier kernels made and was not let go of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from shorthaul.errors import CompilerDefectError, RelationalProgramError
from shorthaul.relational.backends.run import find_last_uses
from shorthaul.relational.ir.operations import infer
from shorthaul.relational.ir.program import Program, Step
from shorthaul.relational.lowering.kernels import (
    Plan,
    RowLoop,
    base_of,
    describe,
    leaves,
    operands_of,
    results_of,
)


def verify_program(program: Program, stage: str, before: Program | None = None) -> Program:
    """`program`, if it is sound and goes on from `before`: the same inputs, and results that begin
    with the same ones; else `CompilerDefectError`, which names the stage.
    """
    made: dict[str, Step] = {}
    for step in program.steps:
        problem = _find_problem(step, made)
        if problem:
            raise CompilerDefectError(program.name, stage, problem, step.line)
        made[step.name] = step
    for name, value in program.outputs:
        if value not in made:
            raise CompilerDefectError(
                program.name, stage, f"the result `{name}` is `{value}`, which nothing makes"
            )
    if before is not None:
        _verify_signature(program, stage, before)
    return program


def _find_problem(step: Step, made: dict[str, Step]) -> str:
    if step.name in made:
        return f"`{step.name}` is made twice"
    missing = [each for each in step.operands if each not in made]
    if missing:
        return f"`{step.name}` reads `{missing[0]}`, which nothing has made by then"
    if step.operation == "input":
        return ""
    operands = tuple(made[each] for each in step.operands)
    try:
        expected = infer(step.operation, operands, dict(step.attributes))
    except RelationalProgramError as error:
        return f"`{step.name}` is not sound: {error}"
    if expected == (step.shape, step.space):
        return ""
    shape, space = expected
    return (
        f"`{step.name}` is {step.shape} per {step.space.value}, and "
        f"`{step.operation}` gives {shape} per {space.value}"
    )


def _verify_signature(program: Program, stage: str, before: Program) -> None:
    inputs = set(program.inputs)
    for step in before.inputs:
        if step not in inputs:
            raise CompilerDefectError(program.name, stage, f"the input `{step.name}` is gone")
    for number, (name, value) in enumerate(before.outputs):
        got = program.outputs[number] if number < len(program.outputs) else ("", "")
        kinds = [
            (each[0], whole[each[1]].shape, whole[each[1]].space) if each[1] else ()
            for each, whole in (((name, value), before), (got, program))
        ]
        if kinds[0] != kinds[1]:
            raise CompilerDefectError(
                program.name, stage, f"the result `{name}` has become another: {kinds[1]}"
            )


def verify_plan(plan: Plan, stage: str, forward_outputs: Collection[str]) -> Plan:
    """`plan`, if each of its kernels finds what it reads; else `CompilerDefectError`."""
    program = plan.program
    inputs = {step.name for step in program.inputs}
    arriving = {step.name for step in program.inputs if step["kind"] == "gradient"}
    check = _PlanCheck(plan, stage)
    check.run(range(len(plan.forward)), inputs - arriving)
    check.require(plan.saved, "the forward part has to save")
    check.require(forward_outputs, "the forward part has to return")
    works = len(plan.forward) + len(plan.backward)
    check.run((*plan.again, *range(len(plan.forward), works)), inputs | set(plan.saved))
    gradients = program.output_values()[len(forward_outputs) :]
    check.require(gradients, "the backward part has to return")
    return plan


def verify_reads(plan: Plan, work: RowLoop, read: Iterable[str], stage: str) -> None:
    """Raise `CompilerDefectError` if the text of a loop reads what the plan does not know of."""
    known = operands_of(work, plan.program, set(plan.stored))
    for name in read:
        if name not in known:
            problem = f"the text of `{describe(work, plan.program)}` reads `{name}`"
            raise CompilerDefectError(
                plan.program.name, stage, f"{problem}, which is none of {sorted(known)}"
            )


class _PlanCheck:
    """Goes through a plan as a run does, with names in place of tensors."""

    def __init__(self, plan: Plan, stage: str) -> None:
        self.plan, self.program, self.stage = plan, plan.program, stage
        self.last_uses = find_last_uses(plan)
        self.there: set[str] = set()

    def run(self, numbers: Iterable[int], there: Iterable[str]) -> None:
        """Go through these kernels, from these values."""
        self.there = set(there)
        works = self.plan.forward + self.plan.backward
        for number in numbers:
            work = works[number]
            kernel = f"the kernel `{describe(work, self.program)}` reads"
            self.require(operands_of(work, self.program, set(self.plan.stored)), kernel)
            if isinstance(work, RowLoop):
                self._verify_order(work)
            self.there.update(results_of(work))
            self.there.difference_update(self.last_uses.get(number, ()))

    def require(self, names: Iterable[str], who: str) -> None:
        """Raise unless all of these values are there; `who` says what they are for."""
        for name in sorted(names):
            if base_of(self.program, name) not in self.there:
                raise self._defect(
                    f"{who} `{name}`, which no kernel has made or kept by then", name
                )

    def _verify_order(self, work: RowLoop) -> None:
        """Raise where a loop reads other rows than its own of what it makes itself."""
        program, made = self.program, set[str]()
        for result in work.results:
            step = program[result]
            is_fine = step.operation == "reduce" or step.space is not work.space
            for leaf, along in leaves(program, set(self.plan.stored), result):
                base = base_of(program, leaf)
                if base not in work.results:
                    continue
                own = work.way if is_fine and program[base].space is work.space else None
                if base not in made or along != own or work.space.is_small:
                    raise self._defect(
                        f"`{result}` reads rows of `{base}` that its own loop has yet to make",
                        result,
                    )
            made.add(result)

    def _defect(self, problem: str, name: str) -> CompilerDefectError:
        return CompilerDefectError(self.program.name, self.stage, problem, self.program[name].line)
