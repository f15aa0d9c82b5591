"""A plan as generated C++: a source for a layer's forward pass and one for its backward pass.

Both are compiled at the first use, at the same time.

Widths are constants of the text, sizes of graphs are arguments: a new graph or mini-batch compiles
nothing. No kernel writes to a row that another thread writes to, and what is added up is added in an
order that the graph alone decides, so results are the same for any number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from shorthaul.jit import (
    CppSource,
    Function,
    KernelFunction,
    NumberArgument,
    TensorArgument,
    ThreadsArgument,
)
from shorthaul.jit.compiling.loading import load_kernels
from shorthaul.relational.backends.cpp.emit_products import (
    ROWS_PER_OUTER_TILE,
    ROWS_PER_TILE,
    emit_outer_sum,
    emit_product,
)
from shorthaul.relational.backends.cpp.emit_row_loop import LoopKernel, emit_row_loop
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

_PREAMBLE = """\
// {title}
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "shorthaul/jit/include/parallel.h"
#include "shorthaul/relational/backends/cpp/products.h"

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

    sources: tuple[CppSource, ...]  # forward, and backward if there is one
    names: Mapping[int, str]  # the function of each kernel, by its place in the plan
    loops: Mapping[int, LoopKernel]
    _functions: dict[str, KernelFunction] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The generated source."""
        return "\n".join(each.complete_text() for each in self.sources)

    def functions(self) -> Mapping[str, KernelFunction]:
        """The compiled functions by name; compiled at the first use."""
        if not self._functions:
            for kernel in load_kernels(self.sources):
                self._functions.update(kernel.functions)
        return self._functions


def emit_plan(plan: Plan, dtype: torch.dtype, index_dtype: torch.dtype) -> CppPlan:
    """The source of every kernel of `plan`."""
    program = plan.program
    # Of the forward pass, and of the backward pass.
    texts: tuple[list[str], list[str]] = ([], [])
    functions: tuple[list[Function], list[Function]] = ([], [])
    names: dict[int, str] = {}
    loops: dict[int, LoopKernel] = {}
    exported = find_exported(plan)
    for number, work in enumerate(plan.forward + plan.backward):
        if isinstance(work, TorchStep):
            continue
        name = names[number] = kernel_name(plan, number)
        part = int(number >= len(plan.forward))
        if isinstance(work, RowLoop):
            loops[number] = emit_row_loop(
                name, work, program, plan.stored, exported, is_narrow=dtype in WIDE
            )
            verify_reads(plan, work, loops[number].leaves, "emit C++")
            texts[part].append(loops[number].text)
            functions[part].append(_loop_function(loops[number], work, dtype, index_dtype))
        elif isinstance(work, Product):
            texts[part].append(
                emit_product(name, program[work.step], program[work.x.value], program[work.weight])
            )
            functions[part].append(_product_function(name, dtype, index_dtype))
        else:
            sides = program[work.x.value], program[work.y.value]
            texts[part].append(emit_outer_sum(name, program[work.step], *sides))
            functions[part].append(_outer_function(name, dtype, index_dtype))
    preamble = _PREAMBLE.format(
        title=f"{program.name}: generated from the layer's program",
        number=_NUMBERS[dtype],
        index="int32_t" if index_dtype is torch.int32 else "int64_t",
    )
    sources = tuple(
        CppSource(
            f"relational_{program.name}",
            preamble + "\n".join(of_part),
            tuple(its_functions),
            flags=("-fopenmp-simd",),
        )
        for of_part, its_functions in zip(texts, functions, strict=True)
        if its_functions
    )
    return CppPlan(
        plan, dtype, index_dtype, find_outputs(plan), find_last_uses(plan), sources, names, loops
    )


def _tensor(name: str, dtype: torch.dtype, **options: bool) -> TensorArgument:
    return TensorArgument(name, dtype, None, **options)


def _loop_function(
    loop: LoopKernel, work: RowLoop, dtype: torch.dtype, index: torch.dtype
) -> Function:
    arguments: list[Any] = [_tensor("chunk_rows", index), NumberArgument("chunks", "int64")]
    if work.fine is not None:
        arguments += [_tensor("pointers", index), _tensor("members", index, is_optional=True)]
    arguments += [_tensor(f"way_{n}", index) for n in range(len(loop.ways))]
    arguments += [_tensor(f"in_{n}", dtype) for n in range(len(loop.leaves))]
    made = WIDE.get(dtype, dtype) if work.space.is_small else dtype
    arguments += [_tensor(f"out_{n}", made, is_written=True) for n in range(len(loop.results))]
    arguments += [NumberArgument(f"state_{n}", "int64") for n in range(len(loop.masks))]
    arguments += [NumberArgument("targets", "int64"), ThreadsArgument()]
    return Function(loop.name, tuple(arguments))


def _product_function(name: str, dtype: torch.dtype, index: torch.dtype) -> Function:
    return Function(
        name,
        (
            _tensor("limits", index),
            _tensor("owners", index),
            NumberArgument("tiles", "int64"),
            _tensor("order", index, is_optional=True),
            _tensor("gather", index, is_optional=True),
            _tensor("x", dtype),
            _tensor("w", dtype),
            _tensor("out", dtype, is_written=True),
            ThreadsArgument(),
        ),
    )


def _outer_function(name: str, dtype: torch.dtype, index: torch.dtype) -> Function:
    return Function(
        name,
        (
            _tensor("limits", index),
            _tensor("owners", index),
            _tensor("first", index),
            NumberArgument("tiles", "int64"),
            NumberArgument("types", "int64"),
            _tensor("order", index, is_optional=True),
            _tensor("gather_x", index, is_optional=True),
            _tensor("gather_y", index, is_optional=True),
            _tensor("x", dtype),
            _tensor("y", dtype),
            _tensor("partial", WIDE.get(dtype, dtype), is_written=True),
            _tensor("out", dtype, is_written=True),
            ThreadsArgument(),
        ),
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

    def _call(self, number: int, *arguments: Any) -> None:
        self.plan.functions()[self.plan.names[number]](*arguments)

    def _run_product(self, number: int, work: Product) -> None:
        step, x = self.steps[work.step], self.steps[work.x.value]
        way = step["way"]
        tiles = self.topology.tiles(step.space, way, ROWS_PER_TILE)
        order = self.topology.members(step.space, way).rows
        gather = None if work.x.way is None else self.topology.way(step.space, work.x.way)
        self._call(
            number,
            tiles.limits,
            tiles.owners,
            tiles.owners.numel(),
            order,
            gather,
            self.value(x.name),
            self.value(work.weight),
            self.empty(step.name),
        )

    def _run_outer(self, number: int, work: OuterSum) -> None:
        step = self.steps[work.step]
        space = self.steps[step.operands[0]].space
        way = step["way"]
        tiles = self.topology.tiles(space, way, ROWS_PER_OUTER_TILE)
        count = tiles.owners.numel()
        ways = [
            None if side.way is None else self.topology.way(space, side.way)
            for side in (work.x, work.y)
        ]
        wide = WIDE.get(self.plan.dtype, self.plan.dtype)
        self._call(
            number,
            *tiles,
            count,
            self.topology.rows(step.space),
            self.topology.members(space, way).rows,
            *ways,
            self.value(work.x.value),
            self.value(work.y.value),
            empty_rows((count, *step.shape), wide, False),
            self.empty(step.name),
        )

    def _run_loop(self, number: int, work: RowLoop) -> None:
        loop = self.plan.loops[number]
        arguments: list[Any]
        if work.space.is_small:
            assert work.fine is not None
            assert work.way is not None
            tiles = self.topology.tiles(work.fine, work.way, ROWS_PER_OUTER_TILE)
            count = tiles.owners.numel()
            every = torch.arange(count + 1, dtype=self.plan.index_dtype, device="cpu")
            arguments = [every, count, tiles.limits]
            arguments.append(self.topology.members(work.fine, work.way).rows)
            wide = WIDE.get(self.plan.dtype, self.plan.dtype)
            outputs = [
                empty_rows((count, *self.steps[name].shape), wide, False) for name in loop.results
            ]
        else:
            chunks = self.topology.chunks(work.space, work.fine, work.way)
            arguments = [chunks, chunks.numel() - 1]
            if work.fine is not None and work.way is not None:
                arguments += list(self.topology.members(work.fine, work.way))
            outputs = [self.empty(name) for name in loop.results]
        for space, way in loop.ways:
            by = work.way if space is work.fine else None
            arguments.append(self.topology.way(space, way, by=by))
        arguments += [self.value(name) for name in loop.leaves]
        arguments += outputs
        arguments += [start_state(self.seed, self.steps[m]["stream"]) for m in loop.masks]
        self._call(number, *arguments, self.topology.num_targets)
        if work.space.is_small:
            for name, partial in zip(loop.results, outputs, strict=True):
                made = self.empty(name)
                total = partial.new_zeros(made.shape)
                made.copy_(total.index_add_(0, tiles.owners, partial))
