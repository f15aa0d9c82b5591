"""The same three operations by PyTorch's own convolution: where no generated kernel applies.

Padding modes that PyTorch does not fuse become a padded copy here; `source_index` says what is
copied from where, so these agree with the kernels by definition.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shorthaul.conv.problem import ConvProblem, Triple, source_index

_ACTIVATION_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "relu6": torch.nn.functional.relu6,
    "hardswish": torch.nn.functional.hardswish,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "relu6": functools.partial(torch.nn.functional.relu6, inplace=True),
    "hardswish": functools.partial(torch.nn.functional.hardswish, inplace=True),
    "silu": functools.partial(torch.nn.functional.silu, inplace=True),
    "sigmoid": torch.sigmoid_,
    "tanh": torch.tanh_,
}


def apply_activation(value: Tensor, activation: str | None, *, is_own: bool = False) -> Tensor:
    """The activation by name; `None` changes nothing.

    A value that is the caller's own, and has no gradient, is written over: fresh memory costs more than
    the activation.
    """
    if activation is None:
        return value
    may_write = is_own and not (torch.is_grad_enabled() and value.requires_grad)
    function = _IN_PLACE.get(activation) if may_write else None
    return (function or _ACTIVATION_FUNCTIONS[activation])(value)


def run_forward(
    problem: ConvProblem,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    out: Tensor | None = None,
    is_trained: bool = False,  # noqa: ARG001 (nothing is packed)
) -> Tensor:
    """activation(convolution + bias + residual), with 5-D input and output."""
    image = pad(problem, input)
    is_flat = _is_flat(problem, image.shape[2])
    image, filters = _drop_depth(is_flat, image, weight.reshape(problem.weight_shape))
    stride, padding, dilation, _, _, groups = _options(problem, is_flat)
    convolve = torch.conv2d if is_flat else torch.conv3d
    output = convolve(image, filters, bias, stride, padding, dilation, groups)
    output = output.unsqueeze(2) if is_flat else output
    if residual is not None:
        output = output + residual
    output = apply_activation(output, problem.activation, is_own=True)
    return _dense(output, problem) if out is None else out.copy_(output)


def run_grad_input(
    problem: ConvProblem,
    grad_output: Tensor,
    weight: Tensor,
    input_sizes: Triple,
    *,
    is_trained: bool = False,  # noqa: ARG001 (nothing is packed)
) -> Tensor:
    """The gradient of the input whose spatial sizes are `input_sizes`."""
    shape = (grad_output.shape[0], problem.in_channels, *_image_sizes(problem, input_sizes))
    is_flat = _is_flat(problem, shape[2])
    gradient, unused, filters = _drop_depth(
        is_flat, grad_output, grad_output.new_empty(shape), weight.reshape(problem.weight_shape)
    )
    padded = torch.ops.aten.convolution_backward(
        gradient, unused, filters, None, *_options(problem, is_flat), (True, False, False)
    )[0]
    padded = padded.unsqueeze(2) if is_flat else padded
    return _dense(unpad(problem, padded, input_sizes), problem)


def run_grad_weight(problem: ConvProblem, grad_output: Tensor, input: Tensor) -> Tensor:
    """The gradient of the weight."""
    image = pad(problem, input)
    is_flat = _is_flat(problem, image.shape[2])
    gradient, image, unused = _drop_depth(
        is_flat, grad_output, image, grad_output.new_empty(problem.weight_shape)
    )
    result: Tensor = torch.ops.aten.convolution_backward(
        gradient, image, unused, None, *_options(problem, is_flat), (False, True, False)
    )[1]
    return result.reshape(problem.weight_shape)


def pad(problem: ConvProblem, input: Tensor) -> Tensor:
    """A padded copy; the input itself where PyTorch's convolution pads by itself."""
    if pads_itself(problem):
        return input
    for dimension, index in _padding_indices(problem, input.shape[2:]):
        chosen = torch.tensor(index, device=input.device, dtype=torch.int64)
        padded = input.index_select(dimension, chosen.clamp(min=0))
        shape = [-1 if each == dimension else 1 for each in range(5)]
        input = padded.masked_fill((chosen < 0).view(shape), 0)
    return input


def unpad(problem: ConvProblem, gradient: Tensor, input_sizes: Triple) -> Tensor:
    """The transpose of `pad`: each padded position's gradient returns to where it came from."""
    if pads_itself(problem):
        return gradient
    for dimension, index in _padding_indices(problem, input_sizes):
        chosen = torch.tensor(index, device=gradient.device, dtype=torch.int64)
        shape = list(gradient.shape)
        shape[dimension] = input_sizes[dimension - 2]
        if min(index) < 0:  # zeros, which came from nowhere
            kept = (chosen >= 0).nonzero().view(-1)
            chosen, gradient = chosen[kept], gradient.index_select(dimension, kept)
        gradient = gradient.new_zeros(shape).index_add_(dimension, chosen, gradient)
    return gradient


def _padding_indices(
    problem: ConvProblem, sizes: torch.Size | Triple
) -> list[tuple[int, tuple[int, ...]]]:
    return [
        (dimension + 2, _indices(size, low, high, problem.padding_mode))
        for dimension, (size, (low, high)) in enumerate(zip(sizes, problem.padding, strict=True))
        if low or high
    ]


@functools.lru_cache(maxsize=256)
def _indices(size: int, low: int, high: int, mode: str) -> tuple[int, ...]:
    return tuple(source_index(position, size, mode) for position in range(-low, size + high))


def pads_itself(problem: ConvProblem) -> bool:
    """Whether PyTorch's convolution pads such an image by itself."""
    return problem.padding_mode == "zeros" and all(low == high for low, high in problem.padding)


def _image_sizes(problem: ConvProblem, input_sizes: Triple) -> Triple:
    """Of what PyTorch's convolution is given: the input, or the padded copy."""
    return input_sizes if pads_itself(problem) else problem.padded_sizes(input_sizes)


def _is_flat(problem: ConvProblem, padded_depth: int) -> bool:
    """Whether there is no depth to speak of: ATen is faster with two dimensions than with three."""
    has_padding = pads_itself(problem) and problem.padding[0] != (0, 0)
    return padded_depth == problem.kernel[0] == 1 and not has_padding


def _drop_depth(is_flat: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(each.squeeze(2) for each in tensors) if is_flat else tensors


def _options(problem: ConvProblem, is_flat: bool) -> tuple[Any, ...]:
    """stride, padding, dilation, transposed, output_padding, groups as ATen takes them."""
    padding = [low for low, _ in problem.padding] if pads_itself(problem) else [0, 0, 0]
    first = 1 if is_flat else 0
    return (
        problem.stride[first:],
        padding[first:],
        problem.dilation[first:],
        False,
        (0, 0, 0)[first:],
        problem.groups,
    )


def _dense(tensor: Tensor, problem: ConvProblem) -> Tensor:
    return tensor.contiguous(memory_format=memory_format(problem))


def memory_format(problem: ConvProblem) -> torch.memory_format:
    """PyTorch's name for the problem's layout of 5-D tensors."""
    if problem.layout == "channels_last":
        return torch.channels_last_3d
    return torch.contiguous_format
