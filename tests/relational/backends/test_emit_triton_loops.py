"""Loops as people read them: sweeps, names, no memory for edges."""

import torch

from shorthaul.relational.backends.emit_triton_loops import emit_triton_loop
from shorthaul.relational.backends.emit_triton_values import Types
from shorthaul.relational.backends.run import find_exported
from shorthaul.relational.compiler import compile_program
from shorthaul.relational.lowering import RowLoop
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
