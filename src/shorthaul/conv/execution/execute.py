"""Running the generated convolution kernels on tensors.

Everything here takes canonical tensors (see `ConvProblem`) and gives exactly what the problem says;
what is faster, and what falls back to ATen, is decided by the callers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from shorthaul.conv.aten import memory_format, unpad
from shorthaul.conv.execution.packing import (
    find_packed,
    find_packed_bias,
    pack,
    pack_bias,
    packed_weights,
    panel_kernel,
)
from shorthaul.conv.execution.plan import (
    find_workspace,
    plan_forward,
    plan_grad_input,
    plan_grad_weight,
)
from shorthaul.conv.layout.function import sum_dtype
from shorthaul.conv.layout.weights import packed_values
from shorthaul.conv.methods.base import ConvSchedule
from shorthaul.conv.methods.gradients.bias import BLOCK_PIXELS, grad_bias_kernel
from shorthaul.conv.problem import KERNEL_DTYPES, ConvProblem, Triple
from shorthaul.errors import ConvolutionError
from shorthaul.jit.runtime import kernel_threads


def supports(problem: ConvProblem) -> str | None:
    """Why no generated kernel applies to `problem`; `None` where one does."""
    if problem.dtype not in KERNEL_DTYPES:
        return f"{problem.dtype} has no generated kernel"
    if problem.in_channels == 0 or problem.out_channels == 0:
        return "a convolution without channels has nothing to generate"
    return None


def run_forward(
    problem: ConvProblem,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
    is_trained: bool = False,
    schedule: ConvSchedule | None = None,
    weight_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """activation(convolution + bias + residual); `residual` has the shape and layout of the output.

    With `weight_scale`, one per output channel, `weight` may be of whole numbers: they are widened and
    scaled while they are packed.
    """
    batch, _, depth, height, width = input.shape
    if out is None:
        sizes = problem.output_sizes((depth, height, width))
        out = _make(problem, (batch, problem.out_channels, *sizes))
    if not out.numel():
        return out
    plan = plan_forward(
        problem,
        (batch, depth, height, width),
        schedule,
        kernel_threads(),
        has_scaled_weights=weight_scale is not None,
    )
    for name, tensor, shape in (
        ("input", input, input.shape),
        ("residual", residual, plan.out_shape),
        ("out", out, plan.out_shape),
    ):
        if tensor is not None:
            _require_dense(name, tensor, problem, shape)
    layout, canonical = plan.weights, plan.canonical
    if is_trained:
        packed = pack(layout, canonical, weight, weight_scale)
        packed_bias = None if bias is None else pack_bias(layout, bias)
    else:
        packed = find_packed(layout, canonical, weight, weight_scale)
        packed_bias = None if bias is None else find_packed_bias(layout, bias)
    plan.run(input, packed, packed_bias, residual, out)
    return out


def _require_dense(
    name: str, tensor: torch.Tensor, problem: ConvProblem, shape: Sequence[int]
) -> None:
    """Refuse what a kernel, which sees addresses, would read or write amiss."""
    if (
        tensor.dtype != problem.dtype
        or tuple(tensor.shape) != tuple(shape)
        or not tensor.is_cpu
        or not tensor.is_contiguous(memory_format=memory_format(problem))
    ):
        raise ConvolutionError(
            f"`{name}` must be {problem.dtype} of shape {tuple(shape)} in the CPU's memory, dense and "
            f"{problem.layout}; got {tensor.dtype} of shape {tuple(tensor.shape)} and strides "
            f"{tensor.stride()} on {tensor.device}."
        )


def _make(problem: ConvProblem, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of the problem's layout, of whatever values."""
    return torch.empty(
        tuple(shape), dtype=problem.dtype, device="cpu", memory_format=memory_format(problem)
    )


def run_grad_input(
    problem: ConvProblem,
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    input_sizes: Triple,
    *,
    is_trained: bool = False,
) -> torch.Tensor:
    """The gradient of the input, of spatial sizes `input_sizes`."""
    batch = grad_output.shape[0]
    if problem.padding_mode != "zeros":
        # What was repeated is added up before it is rounded to 16 bits.
        real = sum_dtype(problem.dtype)
        unpadded, padded = problem.without_padding(real), problem.padded_sizes(input_sizes)
        whole = run_grad_input(unpadded, grad_output.to(real), weight.to(real), padded)
        folded = unpad(problem, whole, input_sizes).to(problem.dtype)
        return folded.contiguous(memory_format=memory_format(problem))
    if not (grad_output.numel() and weight.numel()):
        return _make(problem, (batch, problem.in_channels, *input_sizes)).zero_()
    _require_dense("grad_output", grad_output, problem, grad_output.shape)
    planned = plan_grad_input(problem, (batch, *input_sizes), kernel_threads())
    gradient = _make(problem, (batch, problem.in_channels, *input_sizes))
    if not planned.is_covered:
        gradient.zero_()

    def pack_phases() -> list[torch.Tensor]:
        return [pack(each.weights, each.canonical, weight) for each in planned.phases]

    # Of all phases at once, so that the weights are looked at once.
    of_phases = (
        pack_phases() if is_trained else packed_weights.find(weight, planned.name, pack_phases)
    )
    for plan, packed in zip(planned.phases, of_phases, strict=True):
        plan.run(grad_output, packed, None, None, gradient)
    return gradient


def run_grad_weight(
    problem: ConvProblem, grad_output: torch.Tensor, input: torch.Tensor
) -> torch.Tensor:
    """The gradient of the weight, in the canonical shape."""
    batch, _, depth, height, width = input.shape
    gradient = torch.empty(problem.weight_shape, dtype=sum_dtype(problem.dtype), device="cpu")
    if not (grad_output.numel() and gradient.numel()):
        return gradient.zero_().to(problem.dtype)
    plan = plan_grad_weight(problem, (batch, depth, height, width), kernel_threads())
    lying = replace(problem, layout="channels_last") if plan.task.channels_last else problem
    input, grad_output = (
        each.contiguous(memory_format=memory_format(lying)) for each in (input, grad_output)
    )
    _require_dense("input", input, lying, input.shape)
    _require_dense("grad_output", grad_output, lying, grad_output.shape)
    layout = plan.weights
    view = layout.view(gradient)
    make = torch.zeros if plan.adds_up else torch.empty
    values = plan.stretches * packed_values(view, layout.panel)
    sums = make(values, dtype=layout.real, device="cpu")
    plan.sum_windows(
        input.data_ptr(),
        grad_output.data_ptr(),
        sums.data_ptr(),
        find_workspace(plan.workspace_bytes).data_ptr(),
    )
    panel_kernel(layout.real).unpack_panels(
        sums, gradient, *view.numbers(), layout.panel, layout.lanes
    )
    return gradient.to(problem.dtype)


def run_grad_bias(grad_output: torch.Tensor) -> torch.Tensor:
    """The gradient of the bias, summed in the order in which `grad_output` lies."""
    if not grad_output.is_contiguous(memory_format=torch.channels_last_3d):
        grad_output = grad_output.contiguous()
    images, channels, *sizes = grad_output.shape
    plane, real = math.prod(sizes), sum_dtype(grad_output.dtype)
    channels_last = not grad_output.is_contiguous()
    blocks = -(-images * plane // BLOCK_PIXELS) if channels_last else images
    partial, sums = (
        torch.empty(blocks, channels, dtype=real, device="cpu"),
        torch.empty(channels, dtype=real, device="cpu"),
    )
    kernel = grad_bias_kernel(grad_output.dtype, channels_last)
    kernel.sum_channels(grad_output, partial, sums, images, plane)
    return sums if real == grad_output.dtype else sums.to(grad_output.dtype)
