"""The text of the window kernels: what a person reads, and what other machines would compile."""

from dataclasses import replace

import pytest
import torch

from shorthaul.conv.methods.window_kernel import (
    WORKSPACE,
    WindowKernel,
    emit_panel_widths,
    emit_window_kernel,
    find_run_order,
)
from shorthaul.conv.problem.geometry import KernelShape
from shorthaul.conv.problem.machine import AVX2, AVX512, NEON

SHAPE = KernelShape(64, 40, 1, (1, 3, 3), (1, 1, 1), (1, 1, 1))
KERNEL = WindowKernel(torch.float32, True, "relu", AVX2, 6, 2, SHAPE)

GOLDEN = f"""\
// Convolution by windows packed into strips: 64to40_1x3x3, float32,
// channels last. Register tile: 6 windows x 16 output channels for avx2.
// Every sum runs over (kernel column, kernel row, channel) in this order, whatever the threads.
#define SHORTHAUL_REAL float
#define SHORTHAUL_LANES 8
#include "shorthaul/jit/include/parallel.h"
#include "shorthaul/conv/methods/output.h"
#include "shorthaul/conv/methods/window_block.h"

using namespace shorthaul;
using Value = AsReal;
using Activation = Relu;
constexpr bool channels_last = true;
{WORKSPACE.emit()}
constexpr int tile_rows = 6, tile_vectors = 2;
constexpr int64_t panel = tile_vectors * lanes;
constexpr bool has_prefetch = true;
using Block = WindowBlock<Value, Widened<Value>, channels_last, Windows::strips, false, 576, 0, false, has_prefetch>;
"""


def test_the_head_of_a_kernel_says_what_it_is() -> None:
    source = emit_window_kernel(KERNEL)
    assert source.name == "conv_window_64to40_1x3x3"
    assert source.text.startswith(GOLDEN)
    assert "  constexpr Shape shape{64, 40, 1, 1, 3, 3, 1, 1, 1, 1, 1, 1};\n" in source.text


@pytest.mark.parametrize(
    ("windows", "changes", "length"),
    [
        ("strips", {}, 576),
        ("rows", {}, 64),
        ("in_place", {}, 64),
        ("strips", {"dilation": (1, 1, 2)}, 192),  # a column at a time
        ("in_place", {"kernel": (1, 1, 3)}, 192),  # one row: windows are whole
        ("in_place", {"kernel": (1, 1, 3), "groups": 2}, 64),  # other groups lie in between
        ("strips", {"in_channels": 1024}, 0),  # too long for one chunk
    ],
)
def test_the_length_of_a_run_is_compiled_in(windows, changes, length) -> None:
    kernel = replace(KERNEL, windows=windows, shape=replace(SHAPE, **changes))
    assert kernel.run_length == length
    skips = "true" if windows == "rows" else "false"
    text = f"Windows::{windows}, false, {length}, 0, {skips}, has_prefetch>"
    assert text in emit_window_kernel(kernel).text
    assert replace(kernel, shape=None).run_length == 0


def test_taps_in_padding_can_be_left_out_where_each_has_a_run_and_each_window_a_pointer() -> None:
    assert replace(KERNEL, windows="rows").can_skip
    assert not replace(KERNEL, windows="rows", joins_columns=True).can_skip
    assert not replace(KERNEL, windows="rows", rows=12).can_skip
    assert not KERNEL.can_skip
    in_place = replace(KERNEL, windows="in_place")
    assert not in_place.can_skip
    assert replace(in_place, has_padding=True).can_skip


@pytest.mark.parametrize(
    ("windows", "changes", "joins_columns", "order", "length"),
    [
        ("strips", {}, False, "windows", 576),
        ("strips", {"dilation": (1, 1, 2)}, False, "columns", 192),
        ("in_place", {}, True, "rows", 192),
        ("rows", {}, False, "taps", 64),
        ("in_place", {"kernel": (1, 1, 3)}, False, "windows", 192),
    ],
)
def test_what_of_a_window_is_one_run(windows, changes, joins_columns, order, length) -> None:
    shape = replace(SHAPE, **changes)
    kernel = replace(KERNEL, windows=windows, shape=shape, joins_columns=joins_columns)
    assert find_run_order(shape, windows, joins_columns=joins_columns) == order
    assert kernel.run_length == length


@pytest.mark.parametrize(
    ("changes", "step"),
    [({}, 64), ({"stride": (1, 1, 2)}, 128), ({"kernel": (1, 3, 1), "stride": (1, 1, 2)}, 64)],
)
def test_high_tiles_know_how_far_apart_windows_are(changes, step) -> None:
    shape = replace(SHAPE, **changes)
    kernel = replace(KERNEL, rows=14, vectors=1, windows="rows", shape=shape)
    assert kernel.window_step == step
    assert (
        f"Windows::rows, false, 64, {step}, false, has_prefetch>" in emit_window_kernel(kernel).text
    )
    assert replace(kernel, windows="strips").window_step == step * shape.window_rows
    in_place = replace(kernel, windows="in_place", shape=replace(shape, groups=3))
    assert in_place.window_step == shape.stride[2] * 64 * 3
    for other in ({"rows": 6}, {"shape": None}):  # few windows have a pointer each
        assert replace(kernel, **other).window_step == 0


@pytest.mark.parametrize(("windows", "step"), [("rows", 3), ("in_place", 3), ("strips", 0)])
def test_low_tiles_know_it_too_where_runs_are_short(windows, step) -> None:
    kernel = replace(KERNEL, windows=windows, shape=replace(SHAPE, in_channels=3))
    assert kernel.window_step == step  # a strip's runs are whole windows


def test_a_general_kernel_differs_in_its_shape_only() -> None:
    special, general = emit_window_kernel(KERNEL), emit_window_kernel(replace(KERNEL, shape=None))
    body = special.text.split("const Sizes")[1].split("{DISPATCH}")[0]
    assert "const Shape shape{in_channels, out_channels, groups," in general.text
    assert body.split("run_panel(std")[0].rsplit("if", 1)[0] in general.text


def test_only_panel_widths_that_occur_are_compiled() -> None:
    call = "run_panel(std::integral_constant<int, {}>{{}});"
    both = f"if (channels <= 1 * lanes) {call.format(1)}\n        else {call.format(2)}"
    assert emit_panel_widths(replace(KERNEL, widths=(1, 2))) == both
    assert emit_panel_widths(replace(KERNEL, shape=None)) == both
    assert emit_panel_widths(replace(KERNEL, widths=(2,))) == call.format(2)


def test_layers_of_every_width_share_a_kernel_where_runs_are_long() -> None:
    kernel = replace(KERNEL, windows="rows")
    free, wider = (
        replace(kernel, shape=replace(SHAPE, in_channels=channels)).for_every_width()
        for channels in (64, 512)
    )
    assert free == wider
    source = emit_window_kernel(free)
    assert source.name == "conv_window_any_1x3x3"
    assert "Windows::rows, false, even_runs, 0, true, has_prefetch>" in source.text
    assert "  const Shape shape{in_channels, out_channels, groups, 1, 3, 3, 1, 1, 1," in source.text
    assert (
        "in_channels = numbers[26], out_channels = numbers[27], groups = numbers[28]" in source.text
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": replace(SHAPE, in_channels=16)},  # the runs are short
        {"shape": replace(SHAPE, in_channels=68)},  # they have a rest
        {"shape": replace(SHAPE, in_channels=8192)},  # they are cut
        {"rows": 14},  # even steps from window to window are constants
        {"shape": None},
    ],
)
def test_kernels_that_gain_by_their_channels_keep_them(changes) -> None:
    kernel = replace(KERNEL, windows="rows", **changes)
    assert kernel.for_every_width() == kernel


@pytest.mark.parametrize(
    ("machine", "tile", "lines"),
    [
        (AVX512, (6, 4), "6 windows x 64 output channels for avx512"),
        (NEON, (6, 4), "6 windows x 16 output channels for neon"),
    ],
)
def test_other_machines_change_lanes_and_tile(machine, tile, lines) -> None:
    assert machine.tiles()[0] == tile
    kernel = replace(KERNEL, machine=machine, rows=tile[0], vectors=tile[1])
    text = emit_window_kernel(kernel).text
    assert lines in text
    assert f"#define SHORTHAUL_LANES {machine.vector_bytes // 4}\n" in text
    assert f"constexpr int tile_rows = {tile[0]}, tile_vectors = {tile[1]};\n" in text


def test_double_precision_halves_the_lanes() -> None:
    text = emit_window_kernel(replace(KERNEL, dtype=torch.float64)).text
    assert "#define SHORTHAUL_REAL double\n#define SHORTHAUL_LANES 4\n" in text


def test_half_precision_is_stored_as_bits_and_summed_in_single() -> None:
    source = emit_window_kernel(replace(KERNEL, dtype=torch.bfloat16))
    assert "using Value = AsBfloat16;\n" in source.text
    assert "void convolve(const uint16_t* input, const float* weights," in source.text
