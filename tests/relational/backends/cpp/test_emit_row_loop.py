"""Loops as people read them: sweeps, names, no memory for edges."""

import torch

from shorthaul.relational.compiler import compile_program
from tests.relational.programs import attend, convolve, record, sample_graph, sizes_of


def _loops(definition):
    made = compile_program(record(definition), sizes_of(sample_graph()), torch.float32, torch.int32)
    return list(made.cpp.loops.values())


def test_a_sum_is_one_sweep():
    *_, loop = _loops(convolve)  # after that of the reciprocals of the counts
    assert loop.text.count("for (int64_t p = piece") == 1
    assert list(loop.results.values()) == ["out"]


def test_softmax_and_the_weighted_sum_are_three_sweeps_of_one_row():
    (loop,) = _loops(attend)
    assert loop.text.count("for (int64_t p = piece") == 3
    assert "// sweep 1: reduce" in loop.text
    assert list(loop.results.values()) == ["out"]  # maximum and sum stay in registers
    assert "kept_exp_" in loop.text  # powers are computed once


def test_rows_that_are_far_apart_are_asked_for_ahead():
    wide = compile_program(_wide(), sizes_of(sample_graph()), torch.float32, torch.int32)
    *_, loop = wide.cpp.loops.values()
    assert "__builtin_prefetch" in loop.text
    assert "chunk_stop = pointers[last]" in loop.text  # those of the next rows, too


def _wide():
    from shorthaul.relational.frontend.trace import trace

    return trace(convolve.function, {"width": 64, "out": 64}, {})
