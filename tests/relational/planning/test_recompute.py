"""Fewer bytes between forward and backward, the same bits."""

import copy

import pytest
import torch

from shorthaul.relational.compiler import compile_program
from shorthaul.relational.lowering.kernels import operands_of, results_of
from shorthaul.relational.passes.differentiate import GRADIENT
from shorthaul.relational.planning.recompute import find_again
from shorthaul.relational.topology.topology import Topology
from tests.relational.programs import (
    SIZES,
    attend,
    draw_inputs,
    record,
    sample_graph,
    sizes_of,
    transform,
)


def _compile(definition, budget_bytes=None):
    program = record(definition)
    inputs = tuple(step.name for step in program.inputs)
    sizes = sizes_of(sample_graph())
    return compile_program(
        program, sizes, torch.float32, torch.int32, inputs, budget_bytes=budget_bytes
    )


def _train(compiled):
    """Outputs and gradients, and the bytes that were kept between the two parts."""
    topology = Topology.of(sample_graph())
    inputs = {
        name: value.detach().float()
        for name, value in draw_inputs(compiled.stages[0][1], topology).items()
    }
    forward = compiled.start_run(topology, dict(inputs), 5)
    forward.forward()
    outputs = compiled.program.outputs
    out = forward.value(outputs[0][1])
    saved = {name: forward.values[name] for name in compiled.plan.saved}
    kept_bytes = sum(value.numel() * value.element_size() for value in saved.values())
    values = {**inputs, **saved, GRADIENT + outputs[0][0]: torch.ones_like(out)}
    backward = compiled.start_run(topology, values, 5)
    backward.backward()
    return [out, *(backward.value(value) for _, value in outputs[1:])], kept_bytes


@pytest.mark.parametrize("definition", [attend, transform])
def test_any_budget_is_kept_and_bits_stay(definition):
    expected, all_bytes = _train(_compile(definition))
    assert all_bytes > 0
    for budget in (all_bytes, all_bytes * 2 // 3, all_bytes // 3, 0):
        got, kept_bytes = _train(_compile(definition, budget))
        assert kept_bytes <= budget
        assert all(torch.equal(one, other) for one, other in zip(expected, got, strict=True))


def test_a_large_budget_changes_nothing():
    assert _compile(attend, 2**40).plan == _compile(attend).plan


def test_the_plan_says_what_is_computed_again():
    text = _compile(attend, 0).plan.text()
    assert "saved for backward" not in text
    assert "computed again: value" in text


def test_kernels_that_run_again_find_what_they_read():
    plan = _compile(transform).plan
    for dropped in plan.saved:
        there = {step.name for step in plan.program.inputs} | set(plan.saved) - {dropped}
        for number in find_again(plan, [dropped]):
            work = plan.forward[number]
            assert operands_of(work, plan.program, set(plan.stored)) <= there
            there |= set(results_of(work))
        assert dropped in there


def test_a_layer_takes_a_budget():
    graph = sample_graph()
    x = torch.randn(graph.num_nodes, SIZES["width"])
    made = attend(relations=graph.num_relations, memory_budget="0 B", **SIZES)
    free = copy.deepcopy(made)
    free.function.memory_budget = None
    gradients = []
    for module in (made, free):
        source = x.clone().requires_grad_()
        module(graph, source).sum().backward()
        gradients.append(source.grad)
    assert torch.equal(*gradients)
    assert "computed again" in made.explain()
    assert "computed again" not in free.explain()


def test_a_budget_that_is_no_size_is_refused():
    graph = sample_graph()
    made = attend(relations=graph.num_relations, memory_budget="plenty", **SIZES)
    with pytest.raises(ValueError, match="expected bytes such as"):
        made(graph, torch.randn(graph.num_nodes, SIZES["width"]))
