"""The text of the depthwise kernels: what a person reads, and what other machines would compile."""

from dataclasses import replace

import pytest
import torch

from shorthaul.conv.methods.depthwise import (
    WORKSPACE,
    DepthwiseKernel,
    emit_depthwise_gradient,
    emit_depthwise_kernel,
)
from shorthaul.conv.problem.machine import AVX2, AVX512, NEON, VectorMachine

KERNEL = DepthwiseKernel(torch.float32, "relu", AVX2, 6, 2)

FORWARD_HEAD = f"""\
// Depthwise convolution of channels-last images: any shape, float32.
// Register tile: 6 outputs x 2 vectors of channels for avx2.
// Every sum runs over (kernel column, kernel row) in this order, whatever the threads.
#define SHORTHAUL_REAL float
#define SHORTHAUL_LANES 8
#include "shorthaul/jit/include/parallel.h"
#include "shorthaul/conv/methods/depthwise_row.h"

using namespace shorthaul;
using Value = AsReal;
using Activation = Relu;
constexpr bool channels_last = true;
{WORKSPACE.emit()}
constexpr int tile_pixels = 6, tile_vectors = 2;
"""
GRADIENT_HEAD = f"""\
// Gradient of the weights of a depthwise convolution of channels-last images: any shape, float32.
// Register tile: 6 taps x 2 vectors of channels for avx2.
// Every sum runs over the output rows in order, in stretches or at once, whatever the threads.
#define SHORTHAUL_REAL float
#define SHORTHAUL_LANES 8
#include "shorthaul/jit/include/parallel.h"
#include "shorthaul/conv/methods/depthwise_row.h"

using namespace shorthaul;
using Value = AsReal;
using Activation = NoActivation;
constexpr bool channels_last = true;
{WORKSPACE.emit()}
constexpr int tile_taps = 6, tile_vectors = 2;
"""


def test_the_head_of_the_forward_kernel() -> None:
    source = emit_depthwise_kernel(KERNEL)
    assert source.name == "conv_depthwise_float32"
    assert source.text.startswith(FORWARD_HEAD)


def test_the_head_of_the_gradient_kernel_has_no_activation() -> None:
    source = emit_depthwise_gradient(KERNEL)
    assert source.name == "conv_depthwise_gradient_float32"
    assert source.text.startswith(GRADIENT_HEAD)


@pytest.mark.parametrize("emit", [emit_depthwise_kernel, emit_depthwise_gradient])
@pytest.mark.parametrize(
    ("machine", "dtype", "tile", "lanes", "words"),
    [
        (AVX512, torch.float32, (14, 2), 16, "for avx512."),
        (AVX512, torch.float64, (14, 2), 8, "for avx512."),
        (NEON, torch.float32, (14, 2), 4, "for neon."),
        (NEON, torch.float64, (9, 3), 2, "for neon."),
    ],
)
def test_other_machines_change_lanes_and_tile_only(
    emit, machine: VectorMachine, dtype: torch.dtype, tile: tuple[int, int], lanes: int, words: str
) -> None:
    here = emit(replace(KERNEL, dtype=dtype)).text
    other = emit(DepthwiseKernel(dtype, "relu", machine, *tile)).text
    assert f"#define SHORTHAUL_LANES {lanes}\n" in other
    assert (
        f"{tile[0]} {'outputs' if emit is emit_depthwise_kernel else 'taps'} x {tile[1]}" in other
    )
    assert words in other
    changed = [
        line for line, was in zip(other.splitlines(), here.splitlines(), strict=True) if line != was
    ]
    assert len(changed) == 3  # the tile in words, the lanes and the tile in numbers


@pytest.mark.parametrize("emit", [emit_depthwise_kernel, emit_depthwise_gradient])
def test_the_shape_is_read_from_the_arguments(emit) -> None:
    text = emit(KERNEL).text
    assert "  const Shape shape{in_channels, out_channels, groups, kernel_d, kernel_h," in text
    assert text.count(" kernel_w = numbers[") == 1


@pytest.mark.parametrize(
    ("dtype", "storage", "value"),
    [(torch.bfloat16, "AsBfloat16", "uint16_t"), (torch.float16, "AsFloat16", "uint16_t")],
)
def test_half_precision_is_stored_as_bits_and_summed_in_single(
    dtype: torch.dtype, storage: str, value: str
) -> None:
    kernel = replace(KERNEL, dtype=dtype)
    for source in (emit_depthwise_kernel(kernel), emit_depthwise_gradient(kernel)):
        assert f"using Value = {storage};\n" in source.text
        assert "#define SHORTHAUL_REAL float\n#define SHORTHAUL_LANES 8\n" in source.text
        assert f"(const {value}* input, " in source.text
    gradient = emit_depthwise_gradient(kernel).text
    assert (
        f"void sum_windows(const {value}* input, const {value}* gradient, float* weights,"
        in gradient
    )


def test_every_level_of_the_loops_says_what_it_is() -> None:
    forward, gradient = emit_depthwise_kernel(KERNEL).text, emit_depthwise_gradient(KERNEL).text
    levels = ("// Threads own output rows.", "// Tiles of neighboring outputs", "// Vectors of")
    assert [forward.count(each) for each in levels] == [1, 1, 1]
    levels = ("// A task is a stretch of the output rows", "// Rows of the window", "// Vectors of")
    assert [gradient.count(each) for each in levels] == [1, 1, 1]
