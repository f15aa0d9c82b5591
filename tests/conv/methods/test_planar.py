"""The text of the planar kernel: what a person reads, and what other machines would compile."""

from dataclasses import replace

import pytest
import torch

from shorthaul.conv.methods.base import ConvSchedule
from shorthaul.conv.methods.planar import (
    PLANE_BYTES,
    WORKSPACE,
    Planar,
    PlanarKernel,
    emit_planar_kernel,
)
from shorthaul.conv.methods.text import ACTIVATION_TYPES
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.problem.geometry import forward_task
from shorthaul.conv.problem.machine import AVX2, AVX512, NEON, VectorMachine

KERNEL = PlanarKernel(torch.float32, False, None, AVX2, 3, 4)

HEAD = f"""\
// Convolution vectorized over the width: any shape, float32, contiguous.
// Register tile: 3 output channels x 4 vectors of outputs for avx2.
// Every sum runs over (kernel column, kernel row, channel) in this order, whatever the threads.
#define SHORTHAUL_REAL float
#define SHORTHAUL_LANES 8
#include "shorthaul/jit/include/parallel.h"
#include "shorthaul/conv/methods/planar_block.h"

using namespace shorthaul;
using Value = AsReal;
using Activation = NoActivation;
constexpr bool channels_last = false;
{WORKSPACE.emit()}
constexpr int tile_channels = 3, tile_vectors = 4;
"""


def test_the_head_of_a_kernel_says_what_it_is() -> None:
    source = emit_planar_kernel(KERNEL)
    assert source.name == "conv_planar_3x4_float32_contiguous"
    assert source.text.startswith(HEAD)
    assert (
        "  const Shape shape{in_channels, out_channels, groups, kernel_d, kernel_h," in source.text
    )


def changed_lines(one: str, other: str) -> list[str]:
    pairs = zip(one.splitlines(), other.splitlines(), strict=True)
    return [line for was, line in pairs if line != was]


@pytest.mark.parametrize(
    ("machine", "tile", "lines"),
    [
        (
            AVX512,
            (4, 6),
            [
                "// Register tile: 4 output channels x 6 vectors of outputs for avx512.",
                "#define SHORTHAUL_LANES 16",
                "constexpr int tile_channels = 4, tile_vectors = 6;",
            ],
        ),
        (
            NEON,
            (2, 12),
            [
                "// Register tile: 2 output channels x 12 vectors of outputs for neon.",
                "#define SHORTHAUL_LANES 4",
                "constexpr int tile_channels = 2, tile_vectors = 12;",
            ],
        ),
    ],
)
def test_other_machines_change_lanes_and_tile_only(
    machine: VectorMachine, tile: tuple[int, int], lines: list[str]
) -> None:
    one = replace(KERNEL, counts=(1,))
    other = replace(one, machine=machine, rows=tile[0], vectors=tile[1])
    assert changed_lines(emit_planar_kernel(one).text, emit_planar_kernel(other).text) == lines


def test_the_layout_changes_one_constant() -> None:
    other = emit_planar_kernel(replace(KERNEL, channels_last=True))
    assert other.name == "conv_planar_3x4_float32_channels_last"
    assert changed_lines(emit_planar_kernel(KERNEL).text, other.text) == [
        "// Convolution vectorized over the width: any shape, float32, channels_last.",
        "constexpr bool channels_last = true;",
    ]


@pytest.mark.parametrize("activation", [each for each in ACTIVATION_TYPES if each])
def test_the_activation_changes_one_type(activation: str) -> None:
    other = emit_planar_kernel(replace(KERNEL, activation=activation))
    assert changed_lines(emit_planar_kernel(KERNEL).text, other.text) == [
        f"using Activation = {ACTIVATION_TYPES[activation]};"
    ]


@pytest.mark.parametrize(
    ("dtype", "real", "lanes", "value"),
    [
        (torch.float64, "double", 4, "double"),
        (torch.bfloat16, "float", 8, "uint16_t"),
        (torch.float16, "float", 8, "uint16_t"),
    ],
)
def test_values_are_summed_wide(dtype: torch.dtype, real: str, lanes: int, value: str) -> None:
    source = emit_planar_kernel(replace(KERNEL, dtype=dtype))
    assert f"#define SHORTHAUL_REAL {real}\n#define SHORTHAUL_LANES {lanes}\n" in source.text
    assert (
        f"void convolve(const {value}* input, const {real}* weights, const {real}* bias,"
        in source.text
    )
    assert source.name == f"conv_planar_3x4_{str(dtype).removeprefix('torch.')}_contiguous"


def test_only_tiles_that_occur_are_compiled() -> None:
    call = "run_tile(std::integral_constant<int, {}>{{}});"
    every = emit_planar_kernel(KERNEL).text
    assert "{DISPATCH}" not in every
    assert [call.format(count) in every for count in (1, 2, 3, 4)] == [True, True, True, False]
    some = emit_planar_kernel(replace(KERNEL, counts=(2, 3))).text
    assert f"if (left <= 2) {call.format(2)}\n          else {call.format(3)}" in some
    assert call.format(1) not in some


@pytest.mark.parametrize(
    ("channels", "size", "counts"),
    [(8, 9, (4,)), (6, 9, ()), (6, 3000, (2, 4)), (2, 9, (2,))],
)
def test_small_work_shares_a_kernel_unless_all_tiles_are_whole(channels, size, counts) -> None:
    task = forward_task(ConvProblem(5, channels, (1, 3, 3)), 1, (1, size, size))
    plan = Planar().plan(task, None, ConvSchedule("planar", 4, 3, strip_bytes=PLANE_BYTES), 1)
    assert plan.kernel.counts == counts
