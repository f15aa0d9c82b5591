"""From an author's function to something that runs: trace, passes, differentiation, kernels.

`compile_program` is the whole compiler in one function; everything it calls is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from shorthaul.relational.backends.cpp import CppPlan, emit_plan
from shorthaul.relational.differentiate import differentiate
from shorthaul.relational.ir import Program
from shorthaul.relational.lowering import Plan, lower
from shorthaul.relational.passes import PASS_NAMES, run_passes
from shorthaul.relational.passes.rewriting import GraphSizes


@dataclass(frozen=True)
class Compilation:
    """A program with everything that the compiler made of it."""

    stages: tuple[tuple[str, Program], ...]  # after each pass, in order
    plan: Plan
    cpp: CppPlan
    gradients: tuple[str, ...]  # inputs whose gradients it computes

    @property
    def program(self) -> Program:
        """The last stage: forward and backward in one."""
        return self.plan.program

    def sections(self) -> list[tuple[str, str]]:
        """Every stage, the kernels, and the generated source, each with its heading."""
        parts = [(name, program.text()) for name, program in self._changes()]
        parts.append(("kernels", self.plan.text()))
        parts.append(("generated source", self.cpp.source.complete_text()))
        return parts

    def _changes(self) -> list[tuple[str, Program]]:
        """Stages that differ from the one before."""
        found: list[tuple[str, Program]] = []
        for name, program in self.stages:
            if not found or found[-1][1] != program:
                found.append((name, program))
        return found


def compile_program(
    program: Program,
    sizes: GraphSizes,
    dtype: torch.dtype,
    index_dtype: torch.dtype,
    gradients: Sequence[str] = (),
    without: Collection[str] = (),
) -> Compilation:
    """Compile `program` for graphs of about these sizes; the sizes choose, they do not restrict."""
    unknown = set(without) - set(PASS_NAMES)
    if unknown:
        raise ValueError(f"there is no pass {sorted(unknown)}; there are {', '.join(PASS_NAMES)}")
    sizes = replace(sizes, trains=bool(gradients))
    stages = [("as written", program)]
    stages += run_passes(program, sizes, without)
    outputs = stages[-1][1].output_values()
    if gradients:
        whole = differentiate(stages[-1][1], gradients)
        stages.append(("differentiate", whole))
        stages += [(f"{name}, backward", each) for name, each in run_passes(whole, sizes, without)]
    last = stages[-1][1]
    outputs = last.output_values()[: len(program.outputs)]
    plan = lower(last, outputs)
    return Compilation(tuple(stages), plan, emit_plan(plan, dtype, index_dtype), tuple(gradients))
