"""A plan as generated C++: a source for a layer's forward pass and one for its backward pass.

All are compiled at the first use, at the same time; of many kernels, products apart from loops, as compiling
takes longer than any of them is worth waiting for.

Widths are constants of the text, sizes of graphs are arguments: a new graph or mini-batch compiles
nothing. No kernel writes to a row that another thread writes to, and what is added up is added in an
order that the graph alone decides, so results are the same for any number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from shorthaul.jit import CppSource, Function, KernelFunction
from shorthaul.jit.compiling.loading import load_kernels
from shorthaul.relational.backends.cpp.emit_products import (
    OUTER_PARAMETERS,
    PRODUCT_PARAMETERS,
    ROWS_PER_OUTER_TILE,
    ROWS_PER_TILE,
    emit_outer_sum,
    emit_product,
)
from shorthaul.relational.backends.cpp.emit_row_loop import LoopKernel, emit_row_loop
from shorthaul.relational.backends.cpp.parameters import Parameter, make_function
from shorthaul.relational.backends.run import WIDE, BackendPlan, PlanRun, kernel_name
from shorthaul.relational.ir.dropout_mask import start_state
from shorthaul.relational.lowering.kernels import OuterSum, Plan, Product, RowLoop, TorchStep
from shorthaul.relational.lowering.lifetimes import find_exported, find_last_uses, find_outputs
from shorthaul.relational.lowering.verify import verify_reads
from shorthaul.relational.topology.workspace import empty_rows

_NUMBERS = {
    torch.float32: "Float32",
    torch.float64: "Float64",
    torch.bfloat16: "BFloat16",
    torch.float16: "Float16",
}

# A pass of more kernels than this is two sources: compilers that run side by side then have about half of it
# each. Products share templates, which would be compiled twice if they were divided.
MANY_KERNELS = 8

_PREAMBLE = """\
// {title}
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "shorthaul/jit/include/parallel.h"
#include "shorthaul/relational/backends/cpp/products.h"
#include "shorthaul/relational/backends/cpp/shared_rows.h"

namespace {{
using Number = shorthaul::{number};
using Stored = Number::Stored;
using real = Number::real;
using Index = {index};
using shorthaul::exponential;
using shorthaul::gelu;
using shorthaul::gelu_slope;
using shorthaul::relu;
using shorthaul::silu;
using shorthaul::silu_slope;
}}  // namespace

"""


@dataclass(frozen=True)
class CppPlan(BackendPlan):
    """A plan with its generated source."""

    sources: tuple[CppSource, ...]  # forward, and backward if there is one; each in one or two
    names: Mapping[int, str]  # the function of each kernel, by its place in the plan
    parameters: Mapping[int, tuple[Parameter, ...]]  # of that function
    loops: Mapping[int, LoopKernel]
    _functions: dict[str, KernelFunction] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The generated source."""
        return "\n".join(each.complete_text() for each in self.sources)

    def functions(self) -> Mapping[str, KernelFunction]:
        """The compiled functions by name; compiled at the first use."""
        if not self._functions:
            # The longest first: whoever compiles it is the last to end.
            longest_first = sorted(self.sources, key=lambda each: -len(each.text))
            for kernel in load_kernels(longest_first):
                self._functions.update(kernel.functions)
        return self._functions


def emit_plan(plan: Plan, dtype: torch.dtype, index_dtype: torch.dtype) -> CppPlan:
    """The source of every kernel of `plan`."""
    program = plan.program
    # Of the forward pass and of the backward pass: products, and loops.
    texts: dict[tuple[bool, bool], list[str]] = {}
    functions: dict[tuple[bool, bool], list[Function]] = {}
    names: dict[int, str] = {}
    parameters: dict[int, tuple[Parameter, ...]] = {}
    loops: dict[int, LoopKernel] = {}
    exported = find_exported(plan)
    for number, work in enumerate(plan.forward + plan.backward):
        if isinstance(work, TorchStep):
            continue
        name = names[number] = kernel_name(plan, number)
        if isinstance(work, RowLoop):
            loops[number] = emit_row_loop(
                name, work, program, plan.stored, exported, is_narrow=dtype in WIDE
            )
            verify_reads(plan, work, loops[number].leaves.values(), "emit C++")
            text = loops[number].text
            parameters[number] = loops[number].parameters
        elif isinstance(work, Product):
            text = emit_product(
                name, program[work.step], program[work.x.value], program[work.weight]
            )
            parameters[number] = PRODUCT_PARAMETERS
        else:
            sides = program[work.x.value], program[work.y.value]
            text = emit_outer_sum(name, program[work.step], *sides)
            parameters[number] = OUTER_PARAMETERS
        is_backward = number >= len(plan.forward)
        works = plan.backward if is_backward else plan.forward
        part = is_backward, len(works) > MANY_KERNELS and isinstance(work, RowLoop)
        texts.setdefault(part, []).append(text)
        made = make_function(name, parameters[number], dtype, index_dtype)
        functions.setdefault(part, []).append(made)
    preamble = _PREAMBLE.format(
        title=f"{program.name}: generated from the layer's program",
        number=_NUMBERS[dtype],
        index="int32_t" if index_dtype is torch.int32 else "int64_t",
    )
    sources = tuple(
        CppSource(
            f"relational_{program.name}",
            preamble + "\n".join(texts[part]),
            tuple(functions[part]),
            flags=("-fopenmp-simd",),
        )
        for part in sorted(texts)
    )
    return CppPlan(
        plan,
        dtype,
        index_dtype,
        find_outputs(plan),
        find_last_uses(plan),
        sources,
        names,
        parameters,
        loops,
    )


class Run(PlanRun):
    """One call of a plan by its compiled functions."""

    plan: CppPlan

    def empty(self, name: str) -> torch.Tensor:
        """Memory of the pool, unless the value leaves the layer."""
        step = self.steps[name]
        rows = self.topology.rows(step.space)
        made = empty_rows((rows, *step.shape), self.plan.dtype, name in self.plan.outputs)
        self.values[name] = made
        return made

    def _call(self, number: int, **values: Any) -> None:
        passed = [values[each.name] for each in self.plan.parameters[number]]
        self.plan.functions()[self.plan.names[number]](*passed)

    def _run_product(self, number: int, work: Product) -> None:
        step, x = self.steps[work.step], self.steps[work.x.value]
        way = step["way"]
        tiles = self.topology.tiles(step.space, way, ROWS_PER_TILE)
        gathered = work.x.way
        self._call(
            number,
            limits=tiles.limits,
            owners=tiles.owners,
            tiles=tiles.owners.numel(),
            order=self.topology.members(step.space, way).rows,
            gather=None if gathered is None else self.topology.way(step.space, gathered),
            x=self.value(x.name),
            w=self.value(work.weight),
            out=self.empty(step.name),
        )

    def _run_outer(self, number: int, work: OuterSum) -> None:
        step = self.steps[work.step]
        space = self.steps[step.operands[0]].space
        way = step["way"]
        tiles = self.topology.tiles(space, way, ROWS_PER_OUTER_TILE)
        count = tiles.owners.numel()
        gather_x, gather_y = (
            None if side.way is None else self.topology.way(space, side.way)
            for side in (work.x, work.y)
        )
        wide = WIDE.get(self.plan.dtype, self.plan.dtype)
        self._call(
            number,
            limits=tiles.limits,
            owners=tiles.owners,
            first=tiles.first,
            tiles=count,
            types=self.topology.rows(step.space),
            order=self.topology.members(space, way).rows,
            gather_x=gather_x,
            gather_y=gather_y,
            x=self.value(work.x.value),
            y=self.value(work.y.value),
            partial=empty_rows((count, *step.shape), wide, False),
            out=self.empty(step.name),
        )

    def _run_loop(self, number: int, work: RowLoop) -> None:
        loop = self.plan.loops[number]
        values: dict[str, Any] = {"targets": self.topology.num_targets}
        if work.space.is_small:
            assert work.fine is not None
            assert work.way is not None
            tiles = self.topology.tiles(work.fine, work.way, ROWS_PER_OUTER_TILE)
            count = tiles.owners.numel()
            values["chunk_rows"] = torch.arange(
                count + 1, dtype=self.plan.index_dtype, device="cpu"
            )
            values["chunks"] = count
            values["pointers"] = tiles.limits
            values["members"] = self.topology.members(work.fine, work.way).rows
            wide = WIDE.get(self.plan.dtype, self.plan.dtype)
            for passed, name in loop.results.items():
                values[passed] = empty_rows((count, *self.steps[name].shape), wide, False)
        else:
            chunks = self.topology.chunks(work.space, work.fine, work.way)
            values["chunk_rows"], values["chunks"] = chunks, chunks.numel() - 1
            if work.fine is not None and work.way is not None:
                members = self.topology.members(work.fine, work.way)
                values["pointers"], values["members"] = members
            for passed, name in loop.results.items():
                values[passed] = self.empty(name)
        for passed, (space, way) in loop.ways.items():
            by = work.way if space is work.fine else None
            values[passed] = self.topology.way(space, way, by=by)
        for passed, name in loop.leaves.items():
            values[passed] = self.value(name)
        for passed, mask in loop.masks.items():
            values[passed] = start_state(self.seed, self.steps[mask]["stream"])
        self._call(number, **values)
        if work.space.is_small:
            for passed, name in loop.results.items():
                made, partial = self.empty(name), values[passed]
                total = partial.new_zeros(made.shape)
                made.copy_(total.index_add_(0, tiles.owners, partial))
