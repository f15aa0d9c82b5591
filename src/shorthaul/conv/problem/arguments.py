"""What a caller may write for a convolution's arguments, made canonical or refused.

>>> canonical_triple("stride", 2, dimensions=2)
(1, 2, 2)
>>> canonical_padding("same", 2, kernel=(1, 3, 4), stride=(1, 1, 1), dilation=(1, 1, 1))
((0, 0), (1, 1), (1, 2))
>>> canonical_padding(((0, 1), (2, 0)), 2, kernel=(1, 3, 3), stride=(1, 1, 1), dilation=(1, 1, 1))
((0, 0), (0, 1), (2, 0))

Messages use PyTorch's words, since people search for them, and add what was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shorthaul.conv.problem import PADDING_MODES, Pair, Triple
from shorthaul.errors import ConvolutionError

Integers = int | Sequence[int]
Padding = str | int | Sequence[int] | Sequence[Sequence[int]]


def canonical_triple(name: str, value: Integers, dimensions: int, leading: int = 1) -> Triple:
    """`value` for three dimensions: one number for all of them, or one for each.

    `leading` stands for the dimensions that the caller does not have.
    """
    given = (value,) if isinstance(value, int) else tuple(value)
    if len(given) == 1:
        given *= dimensions
    if len(given) != dimensions or not all(isinstance(each, int) for each in given):
        raise ConvolutionError(
            f"expected {name} to be a single integer value or a list of {dimensions} values to "
            f"match the convolution dimensions, but got {name}={value!r}."
        )
    depth, height, width = (leading,) * (3 - dimensions) + given
    return depth, height, width


def canonical_padding(
    padding: Padding, dimensions: int, *, kernel: Triple, stride: Triple, dilation: Triple
) -> tuple[Pair, Pair, Pair]:
    """(low, high) for three dimensions from any of the forms that people write."""
    if isinstance(padding, str):
        return _named_padding(padding, kernel, stride, dilation)
    if not isinstance(padding, int) and any(not isinstance(each, int) for each in padding):
        pairs = tuple(_pair(each) for each in padding)
        if len(pairs) == 1:
            pairs *= dimensions
    else:
        sides: Any = (padding,) if isinstance(padding, int) else tuple(padding)
        pairs = tuple((side, side) for side in (sides * dimensions if len(sides) == 1 else sides))
    if len(pairs) != dimensions:
        raise ConvolutionError(
            f"expected padding to be a single integer value, a list of {dimensions} values or of "
            f"{dimensions} (low, high) pairs to match the convolution dimensions, but got "
            f"padding={padding!r}."
        )
    if any(side < 0 for pair in pairs for side in pair):
        raise ConvolutionError(f"negative padding is not supported, got padding={padding!r}.")
    first, second, third = ((0, 0),) * (3 - dimensions) + pairs
    return first, second, third


def _pair(value: Any) -> Pair:
    if isinstance(value, int):
        return value, value
    given = tuple(value)
    if len(given) != 2 or not all(isinstance(each, int) for each in given):
        raise ConvolutionError(
            f"asymmetric padding is (low, high) for each dimension, got {value!r}."
        )
    return given[0], given[1]


def _named_padding(
    name: str, kernel: Triple, stride: Triple, dilation: Triple
) -> tuple[Pair, Pair, Pair]:
    if name == "valid":
        return ((0, 0),) * 3
    if name != "same":
        raise ConvolutionError(f"Invalid padding string: {name!r}; it can be 'same' or 'valid'.")
    if stride != (1, 1, 1):
        raise ConvolutionError(
            "padding='same' is not supported for strided convolutions, got stride="
            f"{stride}; give the padding in numbers."
        )
    first, second, third = (
        (reach // 2, reach - reach // 2)  # the odd one goes to the high side, as in PyTorch
        for reach in (wide * (size - 1) for size, wide in zip(kernel, dilation, strict=True))
    )
    return first, second, third


def verify_geometry(stride: Triple, dilation: Triple, groups: int) -> None:
    """Refuse strides, dilations and groups that mean nothing."""
    if groups < 1:
        raise ConvolutionError(f"non-positive groups is not supported, got groups={groups}.")
    if min(stride) < 1:
        raise ConvolutionError(f"non-positive stride is not supported, got stride={stride}.")
    if min(dilation) < 1:
        raise ConvolutionError(f"dilation should be greater than zero, got dilation={dilation}.")


def verify_padding_mode(mode: str) -> None:
    """Refuse what is no padding mode."""
    if mode not in PADDING_MODES:
        raise ConvolutionError(
            f"padding_mode must be one of {', '.join(PADDING_MODES)}, but got {mode!r}."
        )


def verify_weight(weight: torch.Tensor, dimensions: int, groups: int) -> None:
    """Refuse a weight that has the wrong dimensions or cannot be split into the groups."""
    shape = list(weight.shape)
    if weight.dim() != dimensions + 2:
        raise ConvolutionError(
            f"weight should have at least three dimensions, and conv{dimensions}d takes "
            f"{dimensions + 2}: (out_channels, in_channels / groups, *kernel). Expected "
            f"{weight.dim()}-dimensional input for {weight.dim()}-dimensional weight {shape}."
        )
    if shape[0] < groups:
        raise ConvolutionError(
            f"Given groups={groups}, expected weight to be at least {groups} at dimension 0, but "
            f"got weight of size {shape} instead."
        )
    if shape[0] % groups:
        raise ConvolutionError(
            f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, "
            f"but got weight of size {shape} instead."
        )
    if min(shape[2:]) < 1:
        raise ConvolutionError(f"kernel size should be greater than zero, but got {shape[2:]}.")


def verify_input(
    input: torch.Tensor, weight: torch.Tensor, dimensions: int, channels: int, groups: int
) -> None:
    """Refuse an input that is not dense, or whose dimensions or channels do not fit the weight."""
    for name, tensor in (("input", input), ("weight", weight)):
        if tensor.layout != torch.strided:
            raise ConvolutionError(
                f"Expected a dense {name} (torch.strided), but got {tensor.layout}: convert it with "
                ".to_dense()."
            )
    if input.dim() not in (dimensions + 1, dimensions + 2):
        raise ConvolutionError(
            f"Expected {dimensions + 1}D (unbatched) or {dimensions + 2}D (batched) input to "
            f"conv{dimensions}d, but got input of size: {list(input.shape)}."
        )
    got = input.shape[-1 - dimensions]
    if got != channels:
        raise ConvolutionError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected input"
            f"{list(input.shape)} to have {channels} channels, but got {got} channels instead."
        )


def verify_same_kind(name: str, tensor: torch.Tensor, input: torch.Tensor) -> None:
    """Refuse a weight or bias of another dtype or device than the input's."""
    if tensor.dtype != input.dtype:
        raise ConvolutionError(
            f"Input type ({input.dtype}) and {name} type ({tensor.dtype}) should be the same."
        )
    if tensor.device != input.device:
        raise ConvolutionError(
            f"Input device ({input.device}) and {name} device ({tensor.device}) should be the same."
        )


def verify_bias(bias: torch.Tensor, weight: torch.Tensor, channels: int) -> None:
    """Refuse a bias that is not one value per output channel."""
    if bias.dim() != 1 or bias.shape[0] != channels:
        raise ConvolutionError(
            f"Given weight of size {list(weight.shape)}, expected bias to be 1-dimensional with "
            f"{channels} elements, but got bias of size {list(bias.shape)} instead."
        )


def expand_dimensions(tensor: Tensor, dimensions: int) -> Tensor:
    """An input or output as canonical 5-D, with a batch of one if it had none."""
    if tensor.dim() == dimensions + 1:
        tensor = tensor.unsqueeze(0)
    for _ in range(3 - dimensions):
        tensor = tensor.unsqueeze(2)
    return tensor


def drop_dimensions(tensor: Tensor, dimensions: int, is_batched: bool = True) -> Tensor:
    """The inverse of `expand_dimensions`."""
    if dimensions == 2:
        tensor = tensor.squeeze(2)
    elif dimensions == 1:
        tensor = tensor.squeeze((2, 3))
    return tensor if is_batched else tensor.squeeze(0)
