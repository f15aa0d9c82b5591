"""What a drawn layer is held to: plain PyTorch in float64, forward and every gradient."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from shorthaul.graphs import RelationalGraph
from shorthaul.relational.backends import reference
from shorthaul.relational.compiler import Compilation, compile_program
from shorthaul.relational.passes.differentiate import GRADIENT
from shorthaul.relational.passes.rewriting import GraphSizes
from shorthaul.relational.runtime.arguments import (
    arrange_arrived,
    prepare_arguments,
    return_gradient,
    return_results,
)
from shorthaul.relational.topology.topology import Topology
from tests.relational.drawn_layers import Layer, compute, draw_graph, draw_layer, draw_tensors

SEED = 11  # of dropout
# What is added to the numbers of a case to see whether it can be compared, and how well it must be met.
NOISE = {torch.float64: 1e-12, torch.float32: 1e-7}
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A layer, a graph, tensors, and what plain PyTorch makes of them."""

    layer: Layer
    graph: RelationalGraph
    num_targets: int
    tensors: Tensors
    results: tuple[torch.Tensor, ...]
    arrived: tuple[torch.Tensor, ...]  # the gradients of the results
    gradients: Tensors

    def __str__(self) -> str:
        return f"{self.layer}\non {self.graph} with {self.num_targets} targets"


def draw_case(seed: int, size: int = 12, dtype: torch.dtype = torch.float64) -> Case | None:
    """A case, or None where numbers are too large or too near a jump to be compared in `dtype`."""
    layer = draw_layer(seed, size)
    graph, targets = draw_graph(seed)
    drawn = draw_tensors(layer, graph, seed)
    tensors = {name: each.to(dtype).double() for name, each in drawn.items()}
    return make_case(layer, graph, targets, tensors, NOISE[dtype])


def make_case(
    layer: Layer, graph: RelationalGraph, num_targets: int, tensors: Tensors, noise: float
) -> Case | None:
    """The case of these tensors, unless `noise` in them changes a result by much more."""
    generator = torch.Generator().manual_seed(4)
    shaken = {
        name: each * (1 + noise * torch.randn(each.shape, generator=generator, dtype=each.dtype))
        for name, each in tensors.items()
    }
    found = [_differentiate(layer, graph, num_targets, each) for each in (tensors, shaken)]
    (results, arrived, gradients), (others, _, other_gradients) = found
    for one, other in zip(
        (*results, *gradients.values()), (*others, *other_gradients.values()), strict=True
    ):
        size = _largest(one)
        if not size < 1e5 or _largest(one - other) > 1000 * noise * max(size, 1):
            return None
    return Case(layer, graph, num_targets, tensors, results, arrived, gradients)


def _largest(value: torch.Tensor) -> float:
    return float(value.abs().max()) if value.numel() else 0.0


def _differentiate(
    layer: Layer, graph: RelationalGraph, num_targets: int, tensors: Tensors
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...], Tensors]:
    inputs = {name: each.detach().requires_grad_() for name, each in tensors.items()}
    results = compute(layer, graph, inputs, num_targets, SEED)
    generator = torch.Generator().manual_seed(3)
    arrived = [
        torch.randn(each.shape, generator=generator, dtype=torch.float64) for each in results
    ]
    pairs = [(one, dy) for one, dy in zip(results, arrived, strict=True) if one.requires_grad]
    found: tuple[torch.Tensor, ...] = tuple(torch.zeros_like(each) for each in inputs.values())
    if pairs:
        found = torch.autograd.grad(
            [one for one, _ in pairs],
            list(inputs.values()),
            [dy for _, dy in pairs],
            allow_unused=True,
            materialize_grads=True,
        )
    return (
        tuple(each.detach() for each in results),
        tuple(arrived),
        dict(zip(inputs, found, strict=True)),
    )


def compile_case(
    case: Case,
    dtype: torch.dtype = torch.float64,
    without: Collection[str] = (),
    backend: str = "cpp",
    budget_bytes: int | None = None,
    gradients: Collection[str] | None = None,
) -> Compilation:
    """The layer compiled for its graph, with all gradients or these."""
    program = case.layer.record()
    sizes = GraphSizes.of(_topology(case))
    wanted = tuple(step.name for step in program.inputs) if gradients is None else tuple(gradients)
    index_dtype = case.graph.index_dtype
    return compile_program(
        program, sizes, dtype, index_dtype, wanted, without, backend, budget_bytes
    )


def _topology(case: Case) -> Topology:
    return Topology.of(case.graph, case.num_targets)


def check_stages(case: Case, compiled: Compilation) -> None:
    """The reference backend gives plain PyTorch's numbers after every pass."""
    topology, program = _topology(case), compiled.stages[0][1]
    values = prepare_arguments(program, topology, case.tensors)
    arrived = arrange_arrived(program, topology, case.arrived)
    for (name, _), each in zip(program.outputs, arrived, strict=True):
        values[GRADIENT + name] = each
    before = None
    for stage, each in compiled.stages:
        if each is before:  # a pass that found nothing to do
            continue
        before = each
        got = reference.run(each, topology, values, SEED)
        _compare(case, topology, compiled, got, f"the reference after `{stage}`")


def check_kernels(case: Case, compiled: Compilation) -> None:
    """Generated kernels give plain PyTorch's numbers, the backward ones from what was saved."""
    where = f"{compiled.backend} kernels in {compiled.dtype}"
    _compare(case, _topology(case), compiled, run_kernels(case, compiled), where)


def run_kernels(case: Case, compiled: Compilation, threads: int = 0) -> Tensors:
    """What generated kernels make: results, and the gradients of the compilation."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        return _run_kernels(case, compiled)
    finally:
        torch.set_num_threads(before)


def _run_kernels(case: Case, compiled: Compilation) -> Tensors:
    topology, program, last = _topology(case), compiled.stages[0][1], compiled.program
    dtype = compiled.dtype
    values = prepare_arguments(program, topology, {n: t.to(dtype) for n, t in case.tensors.items()})
    run = compiled.start_run(topology, dict(values), SEED)
    run.forward()
    count = len(program.outputs)
    got = {name: run.value(value) for name, value in last.outputs[:count]}
    saved = {name: run.values[name] for name in compiled.plan.saved}
    if compiled.gradients:
        values |= saved
        arrived = arrange_arrived(program, topology, case.arrived)
        for (name, _), each in zip(program.outputs, arrived, strict=True):
            values[GRADIENT + name] = each.to(dtype).contiguous()
        run = compiled.start_run(topology, values, SEED)
        run.backward()
        got |= {name: run.value(value) for name, value in last.outputs[count:]}
    return got


def _compare(
    case: Case,
    topology: Topology,
    compiled: Compilation,
    got: Mapping[str, torch.Tensor],
    where: str,
) -> None:
    program, tolerance = compiled.stages[0][1], TOLERANCES[compiled.dtype]
    returned = return_results(program, topology, [got[name] for name, _ in program.outputs])
    found = {f"result {n}": each for n, each in enumerate(returned)}
    expected = {f"result {n}": each for n, each in enumerate(case.results)}
    largest = max(map(_largest, case.arrived))
    for name in compiled.gradients:
        if GRADIENT + name in got:
            given = got[GRADIENT + name]
            found[f"gradient of {name}"] = return_gradient(
                program, topology, name, given, case.tensors[name].to(given.dtype)
            )
            expected[f"gradient of {name}"] = case.gradients[name]
    assert {name.partition(" of ")[0] for name in found} >= {"result 0"}
    for name, each in expected.items():
        torch.testing.assert_close(
            found[name].double(),
            each,
            rtol=tolerance,
            atol=tolerance * max(1.0, _largest(each), largest),
            msg=lambda text, name=name: f"{where}, {name}: {text}\n{case}",
        )
