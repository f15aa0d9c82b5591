"""Transposed convolutions: the gradient of a convolution's input, used as a function.

>>> import torch
>>> conv_transpose2d(torch.ones(1, 3, 4, 4), torch.ones(3, 2, 2, 2), stride=2).shape
torch.Size([1, 2, 8, 8])
"""

from __future__ import annotations

import torch
from torch import Tensor

from shorthaul.conv.execution.operators import convolution_grad_input
from shorthaul.conv.functional import autocast, choose_layout
from shorthaul.conv.problem import KERNEL_DTYPES, Triple
from shorthaul.conv.problem.arguments import (
    Integers,
    canonical_padding,
    canonical_triple,
    verify_bias,
    verify_geometry,
    verify_input,
    verify_same_kind,
    verify_weight,
)
from shorthaul.errors import ConvolutionError
from shorthaul.fallbacks import note_fallback


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Integers = 1,
    padding: Integers = 0,
    output_padding: Integers = 0,
    groups: int = 1,
    dilation: Integers = 1,
) -> Tensor:
    """`torch.nn.functional.conv_transpose1d` by the generated kernels.

    Its arguments are those of `conv_transpose2d`.
    """
    return _transpose(1, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Integers = 1,
    padding: Integers = 0,
    output_padding: Integers = 0,
    groups: int = 1,
    dilation: Integers = 1,
) -> Tensor:
    """`torch.nn.functional.conv_transpose2d` by the generated kernels.

    Args:
        input: The images, (N, C, H, W) or (C, H, W).
        weight: (C, out_channels / groups, kernel height, kernel width).
        bias: (out_channels,), or None for none (default).
        stride: Step between windows of the output: one number, or one per dimension (default 1).
        padding: What the output lacks at each side: one number, or one per dimension (default 0).
        output_padding: Rows and columns that the output has beyond that, at its far side (default
            0).
        groups: Groups of channels that are convolved apart (default 1).
        dilation: Step between the taps of the kernel: one number, or one per dimension (default 1).
    """
    return _transpose(2, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Integers = 1,
    padding: Integers = 0,
    output_padding: Integers = 0,
    groups: int = 1,
    dilation: Integers = 1,
) -> Tensor:
    """`torch.nn.functional.conv_transpose3d` by the generated kernels.

    Its arguments are those of `conv_transpose2d`.
    """
    return _transpose(3, input, weight, bias, stride, padding, output_padding, groups, dilation)


_ATEN = {
    1: torch.nn.functional.conv_transpose1d,
    2: torch.nn.functional.conv_transpose2d,
    3: torch.nn.functional.conv_transpose3d,
}


def _transpose(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Integers,
    padding: Integers,
    output_padding: Integers,
    groups: int,
    dilation: Integers,
) -> Tensor:
    strides = canonical_triple("stride", stride, dimensions)
    dilations = canonical_triple("dilation", dilation, dimensions)
    verify_geometry(strides, dilations, groups)
    input, weight, bias = autocast(input, weight, bias)
    _verify(dimensions, input, weight, bias, groups)
    kernel = canonical_triple("kernel", weight.shape[2:], dimensions)
    pairs = canonical_padding(
        padding, dimensions, kernel=kernel, stride=strides, dilation=dilations
    )
    extra = canonical_triple("output_padding", output_padding, dimensions, leading=0)
    reason = _reason_for_aten(input.dtype, extra, strides)
    if reason is not None:
        if not torch.compiler.is_compiling():
            note_fallback("transposed convolution", "ATen", reason)
        # A weight of other strides ATen takes for channels last where a dimension of one allows it, and then
        # refuses the gradient that it made itself.
        return _ATEN[dimensions](
            input, weight.contiguous(), bias, stride, padding, output_padding, groups, dilation
        )
    is_batched = input.dim() == dimensions + 2
    images = input if is_batched else input.unsqueeze(0)
    first = 3 - dimensions
    sizes = [
        (size - 1) * step - low - high + wide * (length - 1) + more + 1
        for size, step, (low, high), wide, length, more in zip(
            images.shape[2:], strides[first:], pairs[first:], dilations[first:], kernel[first:],
            extra[first:], strict=True,
        )
    ]  # fmt: skip
    if not torch.compiler.is_compiling() and min(sizes) < 1:
        raise ConvolutionError(
            f"Given input size per channel: {list(input.shape[-dimensions:])}. Calculated output "
            f"size per channel: {sizes}. Output size is too small."
        )
    sides = [side for pair in pairs for side in pair]
    layout = choose_layout(input, weight, dimensions)
    output: Tensor = convolution_grad_input(
        images, weight, sizes, strides, sides, dilations, groups, "zeros", layout, True
    )
    if bias is not None:
        output = output + bias.view(-1, *(1,) * dimensions)
    return output if is_batched else output.squeeze(0)


def _reason_for_aten(dtype: torch.dtype, extra: Triple, strides: Triple) -> str | None:
    if dtype not in KERNEL_DTYPES:
        return f"{dtype} has no generated kernel"
    if any(more >= step for more, step in zip(extra, strides, strict=True)):
        # Then the output's last rows belong to no window, and no convolution has this shape.
        return "output_padding is not below stride"
    return None


def _verify(
    dimensions: int, input: Tensor, weight: Tensor, bias: Tensor | None, groups: int
) -> None:
    verify_weight(weight, dimensions, groups)
    verify_input(input, weight, dimensions, weight.shape[0], groups)
    verify_same_kind("weight", weight, input)
    if bias is not None:
        verify_same_kind("bias", bias, input)
        verify_bias(bias, weight, weight.shape[1] * groups)
