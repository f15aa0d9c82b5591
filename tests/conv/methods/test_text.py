"""The first lines of a kernel."""

from __future__ import annotations

import torch

from shorthaul.conv.layout.function import number_names
from shorthaul.conv.methods.text import emit_numbers, emit_preamble, emit_sizes_and_shape
from shorthaul.conv.problem.geometry import KernelShape
from shorthaul.conv.problem.machine import AVX2

SHAPE = KernelShape(3, 8, 1, (1, 3, 5), (1, 1, 2), (1, 1, 1))


def test_numbers_are_read_in_their_order() -> None:
    text = emit_numbers(("first", "second"))
    assert text.endswith("first = numbers[0], second = numbers[1];")


def test_a_special_kernel_has_constants_for_its_shape() -> None:
    names = number_names((), SHAPE)
    text = emit_sizes_and_shape(names, SHAPE)
    assert "constexpr Shape shape{3, 8, 1, 1, 3, 5, 1, 1, 2, 1, 1, 1};" in text
    assert "const Shape shape{in_channels," in emit_sizes_and_shape(names, None)
    taps = SHAPE.without_channels()
    text = emit_sizes_and_shape(number_names((), taps), taps)
    assert (
        "  const Shape shape{in_channels, out_channels, groups, 1, 3, 5, 1, 1, 2, 1, 1, 1};" in text
    )


def test_a_kernel_begins_with_its_types() -> None:
    text = emit_preamble(torch.bfloat16, AVX2, True, "relu", ("jit/include/parallel",))
    assert "#define SHORTHAUL_LANES 8\n" in text
    assert "using Value = AsBfloat16;\nusing Activation = Relu;\n" in text
    assert '#include "shorthaul/jit/include/parallel.h"' in text
