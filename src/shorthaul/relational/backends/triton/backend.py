"""A plan as Triton kernels: the same products, outer sums and loops as in C++, for GPUs.

Products are written by hand once (`triton_products`), with sizes as constants; loops are generated
(`emit_triton_loops`). As in C++, no program writes where another one writes, and what is added up is
added in an order that the graph alone decides: there are no atomics, and results repeat bit by bit.

Numbers are tested with Triton's interpreter, and that the kernels compile to machine code for sm_80 and
sm_90. No GPU was at hand: their speed is not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
import triton

from shorthaul.jit.launching.launch_grid import flat_grid
from shorthaul.jit.python_module import load_module
from shorthaul.relational.backends.run import WIDE, BackendPlan, PlanRun, kernel_name
from shorthaul.relational.backends.triton import launch as triton_launch
from shorthaul.relational.backends.triton.emit_loops import TritonLoop, emit_triton_loop
from shorthaul.relational.backends.triton.emit_values import Types
from shorthaul.relational.ir.dropout_mask import start_state
from shorthaul.relational.lowering.kernels import OuterSum, Plan, Product, RowLoop
from shorthaul.relational.lowering.lifetimes import find_exported, find_last_uses, find_outputs
from shorthaul.relational.lowering.verify import verify_reads

_PREAMBLE = '''\
"""{title}"""

import triton
import triton.language as tl

from shorthaul.relational.backends.triton.math import (
    expm1,
    gelu,
    gelu_slope,
    is_kept,
    silu,
    silu_slope,
    tanh,
)


'''

# A value that two loops compute must be the same number in both: the gradient of a maximum looks for
# it. So a product and a sum are rounded one after the other, whatever else a loop computes.
OPTIONS = {"enable_fp_fusion": False}
ELEMENTS_PER_PROGRAM = 4096  # of the largest tensor: 32 registers a thread for four warps


@dataclass(frozen=True)
class Bucket:
    """Rows with up to `limit` finer rows each, and the program that suits them."""

    limit: int | None
    fine: int  # finer rows that a program takes at once
    warps: int


BUCKETS = (Bucket(16, 16, 1), Bucket(128, 32, 4), Bucket(None, 128, 8))
LIMITS = tuple(each.limit for each in BUCKETS if each.limit is not None)
TILE_BUCKET = BUCKETS[-1]  # the rows of a weight's gradient are tiles, all of them large


@dataclass(frozen=True)
class TritonPlan(BackendPlan):
    """A plan with the generated text of its loops."""

    text: str
    loops: Mapping[int, TritonLoop]
    constants: Mapping[int, dict[str, Any]]  # of each product and outer sum
    _loaded: list[ModuleType] = field(default_factory=list)

    def kernel(self, number: int) -> Any:
        """The loop at this place of the plan; the text is imported at the first use."""
        if not self._loaded:
            self._loaded.append(load_module(self.plan.program.name, self.text))
        return getattr(self._loaded[0], self.loops[number].name)


def emit_plan(plan: Plan, dtype: torch.dtype, index_dtype: torch.dtype) -> TritonPlan:
    """The text and constants of every kernel of `plan`."""
    program = plan.program
    exported = find_exported(plan)
    loops: dict[int, TritonLoop] = {}
    constants: dict[int, dict[str, Any]] = {}
    types = Types(
        *(f"tl.{str(each).removeprefix('torch.')}" for each in (dtype, WIDE.get(dtype, dtype)))
    )
    for number, work in enumerate(plan.forward + plan.backward):
        if isinstance(work, RowLoop):
            loops[number] = emit_triton_loop(
                kernel_name(plan, number),
                work,
                program,
                plan.stored,
                exported,
                types,
            )
            verify_reads(plan, work, loops[number].leaves, "emit Triton")
        elif isinstance(work, Product):
            constants[number] = triton_launch.product_constants(
                program[work.step], program[work.x.value], program[work.weight], dtype
            )
        elif isinstance(work, OuterSum):
            constants[number] = triton_launch.outer_constants(
                program[work.step], program[work.x.value], program[work.y.value], dtype
            )
    title = f"{program.name}: generated from the layer's program"
    text = _PREAMBLE.format(title=title) + "\n".join(loop.text for loop in loops.values())
    return TritonPlan(
        plan,
        dtype,
        index_dtype,
        find_outputs(plan),
        find_last_uses(plan),
        text,
        loops,
        constants,
    )


class Run(PlanRun):
    """One call of a plan by Triton kernels, where its tensors are."""

    plan: TritonPlan

    def empty(self, name: str) -> torch.Tensor:
        """Memory of PyTorch's own pool."""
        step = self.program[name]
        self.values[name] = made = torch.empty(
            (self.topology.rows(step.space), *step.shape),
            dtype=self.plan.dtype,
            device=self.topology.edge_ids.device,
        )
        return made

    def _run_product(self, number: int, work: Product) -> None:
        step = self.program[work.step]
        space, way = step.space, step["way"]
        triton_launch.launch_product(
            self.plan.constants[number],
            self.topology.tiles(space, way, triton_launch.ROWS_PER_TILE),
            self.topology.members(space, way).rows,
            None if work.x.way is None else self.topology.way(space, work.x.way),
            self.value(work.x.value),
            self.value(work.weight),
            self.empty(step.name),
        )

    def _run_outer(self, number: int, work: OuterSum) -> None:
        step = self.program[work.step]
        space, way = self.program[step.operands[0]].space, step["way"]
        x_rows, y_rows = (
            None if side.way is None else self.topology.way(space, side.way)
            for side in (work.x, work.y)
        )
        triton_launch.launch_outer(
            self.plan.constants[number],
            self.topology.tiles(space, way, triton_launch.ROWS_PER_OUTER_TILE),
            self.topology.members(space, way).rows,
            (x_rows, y_rows),
            self.value(work.x.value),
            self.value(work.y.value),
            self.empty(step.name),
        )

    def _run_loop(self, number: int, work: RowLoop) -> None:
        if work.fine is None or work.way is None:
            self._run_rows(number, work)
        elif work.space.is_small:
            self._run_tiles(number, work)
        else:
            self._run_buckets(number, work)

    def _run_rows(self, number: int, work: RowLoop) -> None:
        """A block of rows per program."""
        loop, rows = self.plan.loops[number], self.topology.rows(work.space)
        outputs = [self.empty(name) for name in loop.results]
        if rows == 0:
            return
        block = max(1, min(128, ELEMENTS_PER_PROGRAM // loop.widest))
        arguments = self._arguments(loop, outputs, rows)
        self.plan.kernel(number)[flat_grid(loop.name, triton.cdiv(rows, block))](
            *arguments, ROWS=block, **OPTIONS
        )

    def _run_buckets(self, number: int, work: RowLoop) -> None:
        """A program per row, of a size that its finer rows fill."""
        assert work.fine is not None
        assert work.way is not None
        loop = self.plan.loops[number]
        outputs = [self.empty(name) for name in loop.results]
        pointers, members = self.topology.members(work.fine, work.way)
        rows = self.topology.buckets(work.fine, work.way, LIMITS)
        for bucket, chosen in zip(BUCKETS, rows, strict=True):
            self._launch(number, bucket, chosen, pointers, members, outputs)

    def _run_tiles(self, number: int, work: RowLoop) -> None:
        """Few rows with many finer rows: a program per tile of those, then the sum of the tiles."""
        assert work.fine is not None
        assert work.way is not None
        loop = self.plan.loops[number]
        tiles = self.topology.tiles(work.fine, work.way, triton_launch.ROWS_PER_OUTER_TILE)
        count, device = len(tiles.owners), tiles.owners.device
        wide = WIDE.get(self.plan.dtype, self.plan.dtype)
        parts = [
            torch.empty((count, *self.program[name].shape), dtype=wide, device=device)
            for name in loop.results
        ]
        members = self.topology.members(work.fine, work.way).rows
        every = torch.arange(count, dtype=self.plan.index_dtype, device=device)
        self._launch(number, TILE_BUCKET, every, tiles.limits, members, parts)
        for name, partial in zip(loop.results, parts, strict=True):
            triton_launch.sum_tiles(tiles, partial, self.empty(name))

    def _launch(
        self,
        number: int,
        bucket: Bucket,
        rows: torch.Tensor,
        pointers: torch.Tensor,
        members: torch.Tensor | None,
        outputs: list[torch.Tensor],
    ) -> None:
        loop = self.plan.loops[number]
        if len(rows) == 0:
            return
        self.plan.kernel(number)[flat_grid(loop.name, len(rows))](
            rows,
            pointers,
            pointers if members is None else members,
            *self._arguments(loop, outputs, len(rows)),
            FINE=fine_rows(bucket, loop),
            HAS_MEMBERS=members is not None,
            num_warps=bucket.warps,
            **OPTIONS,
        )

    def _arguments(self, loop: TritonLoop, outputs: list[torch.Tensor], rows: int) -> list[Any]:
        ways = [self.topology.way(space, way) for space, way in loop.ways]
        leaves = [self.value(name) for name in loop.leaves]
        # As a signed number, so that Triton sees one type for every seed.
        states = [start_state(self.seed, self.program[m]["stream"]) for m in loop.masks]
        signed = [state - 2**32 if state >= 2**31 else state for state in states]
        return [*ways, *leaves, *outputs, rows, self.topology.num_targets, *signed]


def fine_rows(bucket: Bucket, loop: TritonLoop) -> int:
    """How many finer rows a program takes at once: fewer where they are wide."""
    return max(1, min(bucket.fine, ELEMENTS_PER_PROGRAM // loop.widest))
