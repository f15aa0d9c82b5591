"""A run of a compiled layer that autograd records: used for every call outside `torch.compile`."""

from __future__ import annotations

from typing import Any

import torch

from shorthaul.errors import SecondDerivativeError
from shorthaul.relational.backends.run import PlanRun
from shorthaul.relational.compiler import Compilation
from shorthaul.relational.passes.differentiate import GRADIENT
from shorthaul.relational.runtime.arguments import lay_out
from shorthaul.relational.topology.topology import Topology


def run_recorded(
    compiled: Compilation, topology: Topology, values: dict[str, torch.Tensor], seed: int
) -> tuple[torch.Tensor, ...]:
    """The layer's outputs; autograd hears of it only if a gradient is needed."""
    if not compiled.gradients:
        run = compiled.start_run(topology, dict(values), seed)
        run.forward()
        return read_outputs(compiled, run)
    results: tuple[torch.Tensor, ...] = RecordedRun.apply(  # type: ignore[no-untyped-call]
        compiled, topology, seed, tuple(values), *values.values()
    )
    return results


class RecordedRun(torch.autograd.Function):
    """The compiled kernels, with their compiled gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        compiled: Compilation,
        topology: Topology,
        seed: int,
        names: tuple[str, ...],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """The layer's outputs; what the gradients need is saved."""
        run = compiled.start_run(topology, dict(zip(names, tensors, strict=True)), seed)
        run.forward()
        saved = compiled.plan.saved
        ctx.save_for_backward(*tensors, *(run.values[name] for name in saved))
        ctx.compiled, ctx.topology, ctx.seed = compiled, topology, seed
        ctx.value_names = (*names, *saved)
        ctx.input_names = names
        return read_outputs(compiled, run)

    @staticmethod
    def backward(ctx: Any, *arrived: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the inputs that need one."""
        compiled: Compilation = ctx.compiled
        saved = ctx.saved_tensors
        with torch.no_grad():
            values = dict(zip(ctx.value_names, saved, strict=True))
            made = run_gradients(compiled, ctx.topology, values, arrived, ctx.seed)
        found = [made.get(name) for name in ctx.input_names]
        if torch.is_grad_enabled():
            found = refuse_second(compiled.program.name, found, (*arrived, *saved))
        return (None, None, None, None, *found)


def read_outputs(compiled: Compilation, run: PlanRun) -> tuple[torch.Tensor, ...]:
    """What the layer returns, of a run whose forward kernels are through."""
    count = len(compiled.stages[0][1].outputs)
    return tuple(run.value(value) for value in compiled.program.output_values()[:count])


def run_gradients(
    compiled: Compilation,
    topology: Topology,
    values: dict[str, torch.Tensor],
    arrived: tuple[torch.Tensor, ...],
    seed: int,
) -> dict[str, torch.Tensor]:
    """The gradient of each input, from the inputs, what was saved, and the outputs' gradients."""
    outputs = compiled.stages[0][1].outputs
    for (name, _), gradient in zip(outputs, arrived, strict=True):
        values[GRADIENT + name] = lay_out(gradient)
    run = compiled.start_run(topology, values, seed)
    run.backward()
    return {
        name.removeprefix(GRADIENT): run.value(value)
        for name, value in compiled.program.outputs[len(outputs) :]
    }


def refuse_second(
    name: str, made: list[torch.Tensor | None], reached_by: tuple[torch.Tensor, ...]
) -> list[torch.Tensor | None]:
    """The same gradients, which raise when somebody differentiates them."""
    anchor = next((each for each in reached_by if each.requires_grad), None)
    if anchor is None:
        return made
    return [
        None if each is None else _Undifferentiable.apply(name, each, anchor)  # type: ignore[no-untyped-call]
        for each in made
    ]


class _Undifferentiable(torch.autograd.Function):
    """A gradient that has no gradient of its own, and says so where PyTorch would go on in silence."""

    @staticmethod
    def forward(ctx: Any, name: str, made: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        ctx.name = name
        return made.view_as(made)

    @staticmethod
    def backward(ctx: Any, *arrived: torch.Tensor) -> tuple[None, ...]:  # noqa: ARG004
        raise SecondDerivativeError(ctx.name)
