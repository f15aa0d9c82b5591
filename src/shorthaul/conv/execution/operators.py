"""The operators that all convolutions are made of, each the others' gradient.

A convolution is linear in its input and in its weight, so the gradient of each of forward,
grad_input and grad_weight is made of the other two, and every derivative of any order exists::

    output      = convolution(input, weight)
    grad_input  = convolution_grad_input(grad_output, weight)
    grad_weight = convolution_grad_weight(grad_output, input)
    grad_bias   = convolution_grad_bias(grad_output)

Inputs and outputs have a batch, and as many dimensions as the caller's: what is saved, the input and the
weight, looks the same whoever computes, so that a checkpoint may run by ATen first and by a kernel again.
Backends see them with all of `ConvProblem`'s dimensions.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch import Tensor

from shorthaul.conv import aten
from shorthaul.conv.execution import execute as kernels
from shorthaul.conv.execution.backend import choose_backend
from shorthaul.conv.execution.batching import (
    batch_convolution,
    batch_grad_bias,
    batch_grad_input,
    batch_grad_weight,
)
from shorthaul.conv.execution.operator_names import Geometry, defined
from shorthaul.conv.execution.pushing import (
    push_convolution,
    push_grad_bias,
    push_grad_input,
    push_grad_weight,
)
from shorthaul.conv.problem import KERNEL_DTYPES, ConvProblem, Triple
from shorthaul.conv.problem.arguments import drop_dimensions, expand_dimensions
from shorthaul.conv.problem.geometry import as_triple
from shorthaul.errors import KernelPendingError
from shorthaul.jit import can_use_kernels, define_operator

_GEOMETRY = (
    "int[] stride, int[] padding, int[] dilation, int groups, str padding_mode, str layout, "
    "bool exact"
)


@functools.lru_cache(maxsize=4096)
def find_problem(
    in_channels: int,
    out_channels: int,
    kernel: Triple,
    stride: Triple,
    padding: tuple[int, ...],
    dilation: Triple,
    groups: int,
    padding_mode: str,
    layout: str,
    exact: bool,
    dtype: torch.dtype,
    has_bias: bool = False,
    activation: str | None = None,
) -> ConvProblem:
    """The problem of an operator's arguments; `padding` is six numbers, low and high in turn."""
    low_depth, high_depth, low_height, high_height, low_width, high_width = padding
    return ConvProblem(
        in_channels=in_channels,
        out_channels=out_channels,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=((low_depth, high_depth), (low_height, high_height), (low_width, high_width)),
        padding_mode=padding_mode,
        groups=groups,
        dtype=dtype,
        layout=layout,
        has_bias=has_bias,
        activation=activation,
        exact=exact,
    )


def _find(
    in_channels: int, out_channels: int, kernel: Any, dtype: torch.dtype, geometry: Geometry
) -> ConvProblem:
    return find_problem(
        in_channels,
        out_channels,
        as_triple(kernel),
        as_triple(geometry.stride),
        tuple(geometry.padding),
        as_triple(geometry.dilation),
        geometry.groups,
        geometry.padding_mode,
        geometry.layout,
        geometry.exact,
        dtype,
    )


# --- forward ---------------------------------------------------------------------------------


def run_convolution(
    problem: ConvProblem,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
    *,
    is_trained: bool = False,
) -> Tensor:
    """Forward by the best backend, without a gradient; see `Backend` for `is_trained`."""
    in_sizes = as_triple(input.shape[2:])
    problem.verify_input_sizes(in_sizes)
    sizes = problem.output_sizes(in_sizes)
    if out is None and (0 in input.shape or 0 in sizes or not problem.window_values):
        return _run_empty(problem, (len(input), problem.out_channels, *sizes), input, bias)
    dense = aten.memory_format(problem)
    input = input.contiguous(memory_format=dense)
    if residual is not None:
        residual = residual.contiguous(memory_format=dense)
    return choose_backend(problem, input.device).run_forward(
        problem, input, weight, bias, residual, out=out, is_trained=is_trained
    )


def _run_empty(
    problem: ConvProblem, shape: tuple[int, ...], like: Tensor, bias: Tensor | None
) -> Tensor:
    """No input values: every sum is empty, so the output is the bias, or has no values either."""
    output = like.new_zeros(shape)
    if bias is not None:
        output += bias.view(-1, 1, 1, 1)
    return aten.apply_activation(output, problem.activation).contiguous(
        memory_format=aten.memory_format(problem)
    )


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    padding_mode: str,
    layout: str,
    exact: bool,
    activation: str | None,
    residual: Tensor | None,
) -> Tensor:
    problem = find_problem(
        input.shape[1],
        weight.shape[0],
        as_triple(weight.shape[2:]),
        as_triple(stride),
        tuple(padding),
        as_triple(dilation),
        groups,
        padding_mode,
        layout,
        exact,
        input.dtype,
        bias is not None,
        activation,
    )
    is_trained = weight.requires_grad or (bias is not None and bias.requires_grad)
    dimensions = input.dim() - 2
    added = None if residual is None else expand_dimensions(residual, dimensions)
    images = expand_dimensions(input, dimensions)
    output = run_convolution(problem, images, weight, bias, added, is_trained=is_trained)
    return _as_the_caller_has_it(output, dimensions)


def _fake_convolution(input: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    _, stride, padding, dilation, _, _, layout, *_ = rest
    kernel = [1] * (5 - weight.dim()) + list(weight.shape[2:])
    missing = 5 - input.dim()
    sizes = [
        (size + padding[2 * axis] + padding[2 * axis + 1] - dilation[axis] * (kernel[axis] - 1) - 1)
        // stride[axis]
        + 1
        for axis, size in enumerate(input.shape[2:], missing)
    ]
    return _empty(input, (input.shape[0], weight.shape[0], *sizes), layout)


def _save_for_convolution(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    input, weight, bias, *geometry = inputs
    *ctx.geometry, activation, residual = geometry
    ctx.save_for_backward(input, weight)
    ctx.has_bias, ctx.has_residual = bias is not None, residual is not None
    if activation is not None:
        raise NotImplementedError(
            "shorthaul::convolution with a fused activation has no gradient; "
            "`sh.conv2d` applies the activation separately where a gradient is needed."
        )


def _convolution_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    input, weight = ctx.saved_tensors
    grad_input = grad_weight = grad_bias = None
    if ctx.needs_input_grad[0]:
        grad_input = convolution_grad_input(gradient, weight, input.shape[2:], *ctx.geometry)
    if ctx.needs_input_grad[1]:
        grad_weight = convolution_grad_weight(gradient, input, weight.shape[2:], *ctx.geometry)
    if ctx.has_bias and ctx.needs_input_grad[2]:
        grad_bias = convolution_grad_bias(gradient)
    grad_residual = gradient if ctx.has_residual else None
    return grad_input, grad_weight, grad_bias, *(None,) * 8, grad_residual


# --- grad_input ------------------------------------------------------------------------------


def _grad_input(grad_output: Tensor, weight: Tensor, input_sizes: Any, *geometry: Any) -> Tensor:
    known = Geometry(*geometry)
    channels = weight.shape[1] * known.groups
    problem = _find(channels, weight.shape[0], weight.shape[2:], grad_output.dtype, known)
    shape = (grad_output.shape[0], channels, *input_sizes)
    if 0 in shape or 0 in grad_output.shape:
        return _empty(grad_output, shape, known.layout).zero_()
    dimensions = len(input_sizes)
    gradient = expand_dimensions(grad_output, dimensions)
    gradient = gradient.contiguous(memory_format=aten.memory_format(problem))
    of_images = choose_backend(problem, grad_output.device).run_grad_input(
        problem, gradient, weight, as_triple(input_sizes), is_trained=weight.requires_grad
    )
    return _as_the_caller_has_it(of_images, dimensions)


def _fake_grad_input(
    grad_output: Tensor, weight: Tensor, input_sizes: Any, *geometry: Any
) -> Tensor:
    known = Geometry(*geometry)
    shape = (grad_output.shape[0], weight.shape[1] * known.groups, *input_sizes)
    return _empty(grad_output, shape, known.layout)


def _save_for_grad_input(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    grad_output, weight, ctx.input_sizes, *ctx.geometry = inputs
    ctx.save_for_backward(grad_output, weight)


def _grad_input_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    grad_output, weight = ctx.saved_tensors
    for_grad_output = for_weight = None
    if ctx.needs_input_grad[0]:
        for_grad_output = convolution(gradient, weight, None, *ctx.geometry, None, None)
    if ctx.needs_input_grad[1]:
        for_weight = convolution_grad_weight(grad_output, gradient, weight.shape[2:], *ctx.geometry)
    return for_grad_output, for_weight, *(None,) * 8


# --- grad_weight -----------------------------------------------------------------------------


def _grad_weight(grad_output: Tensor, input: Tensor, kernel: Any, *geometry: Any) -> Tensor:
    known = Geometry(*geometry)
    shape = (grad_output.shape[1], input.shape[1] // known.groups, *kernel)
    if 0 in grad_output.shape or 0 in input.shape:
        return input.new_zeros(shape)
    problem = _find(input.shape[1], grad_output.shape[1], kernel, input.dtype, known)
    dense, dimensions = aten.memory_format(problem), input.dim() - 2
    gradient, images = (
        expand_dimensions(each, dimensions).contiguous(memory_format=dense)
        for each in (grad_output, input)
    )
    backend = choose_backend(problem, input.device)
    return backend.run_grad_weight(problem, gradient, images).view(shape)


def _fake_grad_weight(grad_output: Tensor, input: Tensor, kernel: Any, *geometry: Any) -> Tensor:
    groups = Geometry(*geometry).groups
    return input.new_empty((grad_output.shape[1], input.shape[1] // groups, *kernel))


def _save_for_grad_weight(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    grad_output, input, ctx.kernel, *ctx.geometry = inputs
    ctx.save_for_backward(grad_output, input)


def _grad_weight_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    grad_output, input = ctx.saved_tensors
    for_grad_output = for_input = None
    if ctx.needs_input_grad[0]:
        for_grad_output = convolution(input, gradient, None, *ctx.geometry, None, None)
    if ctx.needs_input_grad[1]:
        for_input = convolution_grad_input(grad_output, gradient, input.shape[2:], *ctx.geometry)
    return for_grad_output, for_input, *(None,) * 8


# --- grad_bias -------------------------------------------------------------------------------


def _grad_bias(grad_output: Tensor) -> Tensor:
    is_generated = (
        grad_output.device.type == "cpu"
        and grad_output.dtype in KERNEL_DTYPES
        and can_use_kernels("convolution")
    )
    if 0 not in grad_output.shape and is_generated:
        with contextlib.suppress(KernelPendingError):
            return kernels.run_grad_bias(expand_dimensions(grad_output, grad_output.dim() - 2))
    return grad_output.sum((0, *range(2, grad_output.dim())))


def _fake_grad_bias(grad_output: Tensor) -> Tensor:
    return grad_output.new_empty(grad_output.shape[1])


def _save_for_grad_bias(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.shape = inputs[0].shape


def _grad_bias_backward(ctx: Any, gradient: Tensor) -> Tensor:
    return gradient.view(-1, *(1,) * (len(ctx.shape) - 2)).expand(ctx.shape)


def _as_the_caller_has_it(images: Tensor, dimensions: int) -> Tensor:
    """The images without the dimensions that the caller does not have."""
    if dimensions == 3:
        return images
    # To autograd no view: else nobody could write to what an operator returns, as activations in place do.
    return drop_dimensions(images, dimensions).detach()


def _empty(like: Tensor, shape: tuple[Any, ...], layout: str) -> Tensor:
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(shape))
    dense = last if last and layout == "channels_last" else torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=dense)


convolution = define_operator(
    f"convolution(Tensor input, Tensor weight, Tensor? bias, {_GEOMETRY}, str? activation, "
    "Tensor? residual) -> Tensor",
    cpu=_convolution,
    cuda=_convolution,
    fake=_fake_convolution,
    setup_context=_save_for_convolution,
    backward=_convolution_backward,
    vmap=batch_convolution,
    jvp=push_convolution,
)
convolution_grad_input = define_operator(
    f"convolution_grad_input(Tensor grad_output, Tensor weight, SymInt[] input_sizes, {_GEOMETRY}) "
    "-> Tensor",
    cpu=_grad_input,
    cuda=_grad_input,
    fake=_fake_grad_input,
    setup_context=_save_for_grad_input,
    backward=_grad_input_backward,
    vmap=batch_grad_input,
    jvp=push_grad_input,
)
convolution_grad_weight = define_operator(
    f"convolution_grad_weight(Tensor grad_output, Tensor input, SymInt[] kernel, {_GEOMETRY}) "
    "-> Tensor",
    cpu=_grad_weight,
    cuda=_grad_weight,
    fake=_fake_grad_weight,
    setup_context=_save_for_grad_weight,
    backward=_grad_weight_backward,
    vmap=batch_grad_weight,
    jvp=push_grad_weight,
)
convolution_grad_bias = define_operator(
    "convolution_grad_bias(Tensor grad_output) -> Tensor",
    cpu=_grad_bias,
    cuda=_grad_bias,
    fake=_fake_grad_bias,
    setup_context=_save_for_grad_bias,
    backward=_grad_bias_backward,
    vmap=batch_grad_bias,
    jvp=push_grad_bias,
)
for _name in (
    "convolution",
    "convolution_grad_input",
    "convolution_grad_weight",
    "convolution_grad_bias",
):
    setattr(defined, _name, globals()[_name])
