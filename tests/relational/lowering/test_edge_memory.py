"""Which numbers per edge are written down, and that it changes no number."""

import random

import pytest
import torch

from shorthaul.relational import NodeFeature, Weight, dot, exp, layer, linear, softmax
from shorthaul.relational.frontend.trace import trace
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.lowering import kernels as lowering
from shorthaul.relational.lowering.edge_memory import find_kept_edge_values
from shorthaul.relational.lowering.kernels import ALIASES, CHOICES, RowLoop, lower, results_of
from shorthaul.relational.lowering.verify import verify_plan
from shorthaul.relational.passes import run_passes
from shorthaul.relational.passes.differentiate import differentiate
from tests.relational.programs import LAYERS, additive, record, sample_graph, sizes_of


@layer
def wide_attention(g, x: NodeFeature("width"), w: Weight("relation", "width", "width")):
    for e in g.edges():
        e.value = linear(e.source.x, w[e.relation])
        e.alpha = softmax(dot(e.value, e.target.x))
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += e.alpha * e.value
    return n.out


def _program(gradients=("x", "w"), width=32):
    sizes = sizes_of(sample_graph())
    *_, (_, program) = run_passes(trace(wide_attention.function, {"width": width}), sizes)
    outputs = program.output_values()
    if gradients:
        *_, (_, program) = run_passes(differentiate(program, gradients), sizes)
    return program, program.output_values()[: len(outputs)]


def test_nothing_is_kept_where_one_loop_needs_it():
    assert find_kept_edge_values(*_program(gradients=())) == set()


def test_powers_and_inner_products_of_the_forward_part_are_kept_for_the_backward_part():
    program, outputs = _program()
    kept = find_kept_edge_values(program, outputs)
    assert "exp" in kept
    assert all(program[name].space is Space.EDGE and program[name].size <= 16 for name in kept)
    assert kept <= set(lower(program, outputs).stored)


def test_cheap_values_are_computed_again():
    def doubled(g, x: NodeFeature(1)):
        for e in g.edges():
            e.both = e.source.x + e.target.x
        for n in g.target_nodes():
            for e in n.incoming_edges():
                n.out += e.both
                n.more += exp(e.both)
        return n.out + n.more

    *_, (_, forward) = run_passes(trace(doubled, {}), sizes_of(sample_graph()))
    program = differentiate(forward, ["x"])
    kept = find_kept_edge_values(program, program.output_values()[:1])
    assert "both" not in kept


def test_what_products_read_and_make_is_no_choice():
    """It has memory anyway: to choose it again once lost it (`tanh` of additive attention)."""
    program = differentiate(record(additive), ["x", "weight", "score", "bias"])
    kept = find_kept_edge_values(program, program.output_values()[:1])
    of_products = {
        name
        for step in program.steps
        if step.operation in ("linear", "outer")
        for name in (step.name, *step.operands)
    }
    assert kept
    assert kept.isdisjoint(of_products)


@pytest.mark.parametrize("name", LAYERS)
def test_whatever_is_chosen_no_value_is_lost(name, monkeypatch):
    """Which values are kept is a question of speed: any choice makes a plan that hangs together."""
    program = record(LAYERS[name])
    count, inputs = len(program.outputs), [step.name for step in program.inputs]
    *_, (_, program) = run_passes(program, sizes_of(sample_graph()))
    *_, (_, program) = run_passes(differentiate(program, inputs), sizes_of(sample_graph()))
    outputs = program.output_values()[:count]
    of_edges = [
        step.name
        for step in program.steps
        if step.space is Space.EDGE and step.operation not in ("input", "expand", *ALIASES)
    ]
    chance = random.Random(0)
    choices = [{each} for each in of_edges] + [set(of_edges)]
    choices += [set(chance.sample(of_edges, len(of_edges) // 2)) for _ in range(20)]
    for chosen in choices:
        monkeypatch.setattr(lowering, "find_kept_edge_values", lambda *_, chosen=chosen: chosen)
        verify_plan(lower(program, outputs), f"choosing {sorted(chosen)}", outputs)


def test_without_fusion_every_value_has_its_own_loop():
    program, outputs = _program()
    fused, apart = lower(program, outputs), lower(program, outputs, ["fuse_loops"])
    assert len(apart.forward) > len(fused.forward)
    loops = [w for w in apart.forward + apart.backward if isinstance(w, RowLoop)]
    assert {len(results_of(loop)) for loop in loops} == {1}
    assert "multiply" in apart.stored  # a tensor per edge


@pytest.mark.parametrize("without", [(), *((name,) for name in CHOICES)])
def test_numbers_are_the_same_with_and_without(without):
    torch.manual_seed(0)
    graph = sample_graph()
    module = wide_attention(relations=graph.num_relations, width=32, without=without)
    x = torch.randn(graph.num_nodes, 32, requires_grad=True)
    got = []
    for backend in ("cpp", "reference"):
        module.function.backend = backend
        out = module(graph, x)
        got.append((out, *torch.autograd.grad(out.square().sum(), [x, module.w])))
    for one, other in zip(*got, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
