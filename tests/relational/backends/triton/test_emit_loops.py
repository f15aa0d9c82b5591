"""Loops as people read them: sweeps, names, no memory for edges."""

import torch

from shorthaul.relational import NodeFeature, concat, tanh, total
from shorthaul.relational.backends.triton.emit_loops import emit_triton_loop
from shorthaul.relational.backends.triton.emit_values import Types
from shorthaul.relational.compiler import compile_program
from shorthaul.relational.frontend.trace import trace
from shorthaul.relational.lowering.kernels import RowLoop
from shorthaul.relational.lowering.lifetimes import find_exported
from tests.relational.programs import attend, convolve, drop, record, sample_graph, sizes_of

TYPES = Types("tl.float16", "tl.float32")


def _loops(definition, gradients=()):
    made = compile_program(
        record(definition), sizes_of(sample_graph()), torch.float32, torch.int32, gradients
    )
    plan = made.plan
    return [
        emit_triton_loop(
            f"loop_{number}", work, plan.program, plan.stored, find_exported(plan), TYPES
        )
        for number, work in enumerate(plan.forward + plan.backward)
        if isinstance(work, RowLoop)
    ]


def test_softmax_and_the_weighted_sum_are_three_sweeps_of_one_row():
    (loop,) = _loops(attend)
    assert loop.text.count("for p in range(start, stop, FINE)") == 3
    assert "# sweep 1: reduce" in loop.text
    assert loop.has_finer
    assert loop.results == ("out",)  # maximum and sum stay in registers
    assert loop.widest == 8  # two heads by three, rounded up


def test_sums_are_masked_and_start_at_zero():
    loop = next(each for each in _loops(convolve) if "out" in each.results)
    assert "out_ = tl.full((1, 4), 0, tl.float32)" in loop.text
    assert "out_ += tl.sum(tl.where(is_fine[:, None]," in loop.text
    assert "tl.store(out_out + row[:, None] * 3 + i0_3" in loop.text


def test_the_text_is_python():
    for loop in (*_loops(attend, ("x",)), *_loops(drop)):
        compile(loop.text, loop.name, "exec")
        assert "atomic" not in loop.text


def test_states_of_dropout_are_numbers_that_compile_nothing_anew():
    (loop,) = _loops(drop)
    (mask,) = loop.masks
    assert f"do_not_specialize=['rows', 'targets', 'state_{mask}']" in loop.text


def _all_loops(function, sizes=None):
    program = trace(function, sizes or {})
    inputs = tuple(step.name for step in program.inputs)
    made = compile_program(program, sizes_of(sample_graph()), torch.float64, torch.int32, inputs)
    return made.triton.text


def test_an_inner_sum_that_has_memory_is_read_and_not_made_again():
    def halved(g, x: NodeFeature(16)):
        for e in g.edges():
            e.size = total(e.source.x)
            e.m = tanh(e.size / (1.0 + e.size * e.size))
        for n in g.target_nodes():
            for e in n.incoming_edges():
                n.out += e.m
        return n.out

    _all_loops(halved)  # the compiler verifies what the texts read


def test_the_part_of_a_gradient_that_is_nothing_is_a_tensor():
    def part(g, x: NodeFeature(3, 1)):
        for n in g.nodes():
            n.out = concat(n.x, n.x).split(1, 1)[1]
        return n.out

    text = _all_loops(part)
    assert "tl.broadcast_to(tl.full((1, 1, 1), 0.0, tl.float64)" in text
    assert "tl.broadcast_to(0.0" not in text
