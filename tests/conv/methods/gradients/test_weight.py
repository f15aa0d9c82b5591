"""The text of the weight-gradient kernel: what a person reads, what other machines would compile."""

from dataclasses import replace

import pytest
import torch

from shorthaul.conv.methods.gradients.weight import WORKSPACE, emit_grad_weight_kernel
from shorthaul.conv.methods.text import find_widths
from shorthaul.conv.methods.window_kernel import WindowKernel, emit_panel_widths
from shorthaul.conv.problem.geometry import KernelShape
from shorthaul.conv.problem.machine import AVX2, AVX512, NEON, VectorMachine

SHAPE = KernelShape(64, 40, 1, (1, 3, 3), (1, 2, 2), (1, 1, 1))
KERNEL = WindowKernel(torch.float32, True, "relu", AVX2, 6, 2, SHAPE)

HEAD = f"""\
// Gradient of the weights of a convolution: 64to40_1x3x3_s1x2x2, float32,
// channels last. Register tile: 6 window values x 16 output channels for avx2.
// Every sum runs over the blocks of output pixels in order, in stretches or at once, whatever the threads.
#define SHORTHAUL_REAL float
#define SHORTHAUL_LANES 8
#include "shorthaul/jit/include/parallel.h"
#include "shorthaul/conv/methods/gradient_block.h"

using namespace shorthaul;
using Value = AsReal;
using Activation = NoActivation;
constexpr bool channels_last = true;
{WORKSPACE.emit()}
constexpr int tile_rows = 6, tile_vectors = 2;
constexpr int64_t panel = tile_vectors * lanes;
"""


def test_the_head_of_a_kernel_says_what_it_is() -> None:
    source = emit_grad_weight_kernel(KERNEL)
    assert source.name == "conv_grad_weight_64to40_1x3x3_s1x2x2"
    assert source.text.startswith(HEAD)
    assert "  constexpr Shape shape{64, 40, 1, 1, 3, 3, 1, 2, 2, 1, 1, 1};\n" in source.text


def test_the_activation_of_the_forward_pass_does_not_matter() -> None:
    assert emit_grad_weight_kernel(KERNEL) == emit_grad_weight_kernel(
        replace(KERNEL, activation=None)
    )


@pytest.mark.parametrize(
    ("machine", "tile", "widths", "words"),
    [
        (AVX512, (14, 2), (1, 2), "14 window values x 32 output channels for avx512."),
        (NEON, (14, 2), (2,), "14 window values x 8 output channels for neon."),
        (NEON, (9, 3), (1, 3), "9 window values x 12 output channels for neon."),
    ],
)
def test_other_machines_change_lanes_tile_and_panels(
    machine: VectorMachine, tile: tuple[int, int], widths: tuple[int, ...], words: str
) -> None:
    occurring = find_widths(40, machine.lanes(4), tile[1])
    kernel = replace(KERNEL, machine=machine, rows=tile[0], vectors=tile[1], widths=occurring)
    text = emit_grad_weight_kernel(kernel).text
    assert words in text
    assert f"#define SHORTHAUL_LANES {machine.vector_bytes // 4}\n" in text
    assert f"constexpr int tile_rows = {tile[0]}, tile_vectors = {tile[1]};\n" in text
    # 40 output channels: the widths of panels that occur are compiled, and no others.
    called = [width for width in range(1, 5) if f"std::integral_constant<int, {width}>" in text]
    assert tuple(called) == widths


def test_a_general_kernel_takes_its_shape_and_every_width() -> None:
    kernel = replace(KERNEL, shape=None, channels_last=False)
    source = emit_grad_weight_kernel(kernel)
    assert source.name == "conv_grad_weight_general"
    assert "// contiguous. Register tile: 6 window values" in source.text
    assert "  const Shape shape{in_channels, out_channels, groups, kernel_d," in source.text
    assert emit_panel_widths(kernel) in source.text
    assert "{DISPATCH}" not in source.text
    texts = (source.text, emit_grad_weight_kernel(KERNEL).text)
    general, specialized = (
        each.partition("places = numbers + ")[2].split(";")[0] for each in texts
    )
    assert int(general) - int(specialized) == 12


@pytest.mark.parametrize(
    ("dtype", "real", "lanes", "value"),
    [(torch.float64, "double", 4, "double"), (torch.bfloat16, "float", 8, "uint16_t")],
)
def test_gradients_are_summed_wide(dtype: torch.dtype, real: str, lanes: int, value: str) -> None:
    text = emit_grad_weight_kernel(replace(KERNEL, dtype=dtype)).text
    assert f"#define SHORTHAUL_REAL {real}\n#define SHORTHAUL_LANES {lanes}\n" in text
    assert (
        f"void sum_windows(const {value}* input, const {value}* gradient, {real}* weights," in text
    )
