"""Drawn programs on drawn graphs: the reference keeps its numbers through every pass, gradients are
those of PyTorch, and the generated kernels agree in float64.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shorthaul.relational.backends import reference
from shorthaul.relational.backends.cpp import Run
from shorthaul.relational.compiler import compile_program
from shorthaul.relational.passes.rewriting import GraphSizes
from tests.relational.drawn_programs import recipes, record, topologies
from tests.relational.programs import draw_inputs

SEED = 11
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


def _expect(program, topology):
    """Inputs, and by PyTorch's autograd: outputs, gradients that arrive, gradients of inputs."""
    inputs = draw_inputs(program, topology)
    outputs = reference.run(program, topology, inputs, SEED)
    generator = torch.Generator().manual_seed(3)
    arrived = {
        f"gradient_of_{name}": torch.randn(value.shape, generator=generator, dtype=value.dtype)
        for name, value in outputs.items()
    }
    leaves = [value for value in outputs.values() if value.requires_grad]
    wanted = [g for g, v in zip(arrived.values(), outputs.values(), strict=True) if v.requires_grad]
    found = torch.autograd.grad(
        leaves, list(inputs.values()), wanted, allow_unused=True, materialize_grads=True
    )
    gradients = {f"gradient_of_{n}": g for n, g in zip(inputs, found, strict=True)}
    plain = {name: value.detach() for name, value in inputs.items()}
    return plain, {n: v.detach() for n, v in outputs.items()}, arrived, gradients


def _compare(got, expected, where):
    for name, value in expected.items():
        if name in got:
            size = float(value.abs().max()) if value.numel() else 0.0
            torch.testing.assert_close(
                got[name],
                value,
                rtol=1e-7,
                atol=1e-8 * max(1.0, size),
                msg=lambda text, name=name: f"{where}, {name}: {text}",
            )


def _compile(program, topology, inputs):
    index_dtype = topology.graph.index_dtype
    return compile_program(
        program, GraphSizes.of(topology), torch.float64, index_dtype, tuple(inputs)
    )


def _check_passes(recipe, topology):
    program = record(recipe)
    inputs, outputs, arrived, gradients = _expect(program, topology)
    compiled = _compile(program, topology, inputs)
    for stage, each in compiled.stages:
        given = {step.name: {**inputs, **arrived}[step.name] for step in each.inputs}
        got = reference.run(each, topology, given, SEED)
        _compare(got, {**outputs, **gradients}, stage)
    assert set(gradients) <= {name for name, _ in compiled.program.outputs}


def _check_kernels(recipe, topology):
    program = record(recipe)
    inputs, outputs, arrived, gradients = _expect(program, topology)
    compiled = _compile(program, topology, inputs)
    run = Run(compiled.cpp, topology, {**inputs, **arrived}, SEED)
    run.forward()
    got = {
        name: run.value(compiled.program.by_name[value].name) for name, value in _first(compiled)
    }
    _compare(got, outputs, "forward kernels")
    run.backward()
    made = {name: run.value(value) for name, value in compiled.program.outputs}
    _compare(made, {**outputs, **gradients}, "backward kernels")


def _first(compiled):
    return compiled.program.outputs[: len(compiled.stages[0][1].outputs)]


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=QUIET)
@given(recipes(), topologies())
def test_the_reference_keeps_its_numbers_through_every_pass(recipe, topology):
    _check_passes(recipe, topology)


@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=QUIET)
@given(recipes(widths=(3,)), st.lists(topologies(), min_size=3, max_size=3))
def test_generated_kernels_agree_with_the_reference(recipe, several):
    for topology in several:
        _check_kernels(recipe, topology)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=QUIET)
@given(recipes(), topologies())
def test_many_programs_through_every_pass(recipe, topology):
    _check_passes(recipe, topology)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=QUIET)
@given(recipes(), st.lists(topologies(), min_size=2, max_size=2))
def test_many_programs_through_generated_kernels(recipe, several):
    for topology in several:
        _check_kernels(recipe, topology)
