"""From an author's function to something that runs: trace, passes, differentiation, kernels.

`compile_program` is the whole compiler in one function; everything it calls is pure.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from shorthaul.relational.backends.cpp import backend as cpp
from shorthaul.relational.backends.run import PlanRun
from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.verify import verify_program
from shorthaul.relational.lowering.kernels import Plan, lower
from shorthaul.relational.lowering.verify import verify_plan
from shorthaul.relational.passes import PASS_NAMES, run_passes
from shorthaul.relational.passes.differentiate import differentiate
from shorthaul.relational.passes.rewriting import GraphSizes
from shorthaul.relational.planning.recompute import keep_within
from shorthaul.relational.topology.topology import Topology

if TYPE_CHECKING:  # Triton is optional, and takes a second to import
    from shorthaul.relational.backends.triton.backend import TritonPlan


@dataclass(frozen=True)
class Compilation:
    """A program with everything that the compiler made of it."""

    stages: tuple[tuple[str, Program], ...]  # after each pass, in order
    plan: Plan
    dtype: torch.dtype
    index_dtype: torch.dtype
    gradients: tuple[str, ...]  # inputs whose gradients it computes
    backend: str = "cpp"  # or "triton"

    @property
    def program(self) -> Program:
        """The last stage: forward and backward in one."""
        return self.plan.program

    @functools.cached_property
    def cpp(self) -> cpp.CppPlan:
        """The kernels in C++, written at the first use."""
        return cpp.emit_plan(self.plan, self.dtype, self.index_dtype)

    @functools.cached_property
    def triton(self) -> TritonPlan:
        """The same kernels in Triton, written at the first use."""
        from shorthaul.relational.backends.triton import backend as triton

        return triton.emit_plan(self.plan, self.dtype, self.index_dtype)

    def start_run(self, topology: Topology, values: dict[str, torch.Tensor], seed: int) -> PlanRun:
        """A call of the kernels, with the values that they start from."""
        if self.backend == "triton":
            from shorthaul.relational.backends.triton import backend as triton

            return triton.Run(self.triton, topology, values, seed)
        return cpp.Run(self.cpp, topology, values, seed)

    def sections(self) -> list[tuple[str, str]]:
        """Every stage, the kernels, and the generated source, each with its heading."""
        parts = [(name, program.text()) for name, program in self._changes()]
        parts.append(("kernels", self.plan.text()))
        is_triton = self.backend == "triton"
        text = self.triton.text if is_triton else self.cpp.text
        parts.append(("generated source", text))
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
    backend: str = "cpp",
    budget_bytes: int | None = None,
) -> Compilation:
    """Compile `program` for graphs of about these sizes; the sizes choose, they do not restrict.

    `budget_bytes` limits what is kept between the forward and the backward pass. An equal program for
    an equal graph is compiled once, whichever layer asks: the layers of a model share their kernels.
    """
    unknown = set(without) - set(PASS_NAMES)
    if unknown:
        raise ValueError(f"there is no pass {sorted(unknown)}; there are {', '.join(PASS_NAMES)}")
    rows = tuple(sizes[space] for space in Space)
    left_out = tuple(sorted(set(without)))
    return _compile(
        program, rows, dtype, index_dtype, tuple(gradients), left_out, backend, budget_bytes
    )


@functools.lru_cache(maxsize=256)
def _compile(
    program: Program,
    rows: tuple[int, ...],
    dtype: torch.dtype,
    index_dtype: torch.dtype,
    gradients: tuple[str, ...],
    without: tuple[str, ...],
    backend: str,
    budget_bytes: int | None,
) -> Compilation:
    sizes = GraphSizes(dict(zip(Space, rows, strict=True)), trains=bool(gradients))
    stages = [("as written", verify_program(program, "trace"))]
    stages += run_passes(program, sizes, without)
    if gradients:
        before = stages[-1][1]
        whole = verify_program(differentiate(before, gradients), "differentiate", before)
        stages.append(("differentiate", whole))
        stages += [(f"{name}, backward", each) for name, each in run_passes(whole, sizes, without)]
    last = stages[-1][1]
    outputs = last.output_values()[: len(program.outputs)]
    plan = verify_plan(lower(last, outputs, without), "lower", outputs)
    if budget_bytes is not None:
        plan = keep_within(plan, sizes, dtype.itemsize, budget_bytes)
        verify_plan(plan, "keep_within", outputs)
    return Compilation(tuple(stages), plan, dtype, index_dtype, gradients, backend)
