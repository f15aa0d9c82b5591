"""Whether a plan hangs together: run after lowering and after every change of what is kept.

A plan in which a kernel reads what no kernel has made would otherwise be met in the middle of a user's
step, or not at all.

A plan is sound if its kernels can be
gone through as a run goes through them: each finds what it reads among the inputs, what was saved, and
what earlier kernels made and was not let go of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from shorthaul.errors import CompilerDefectError
from shorthaul.relational.lowering.kernels import (
    Plan,
    RowLoop,
    base_of,
    describe,
    leaves,
    operands_of,
    results_of,
)
from shorthaul.relational.lowering.lifetimes import find_last_uses


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
