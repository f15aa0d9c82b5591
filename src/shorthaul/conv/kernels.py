"""Running the generated convolution kernels on tensors.

Everything here takes canonical tensors (see `ConvProblem`) and gives exactly what the problem says;
what is faster, and what falls back to ATen, is decided by the callers.
"""

from __future__ import annotations

import functools
import math
import threading
from dataclasses import replace

import torch

from shorthaul.conv.calls import (
    Call,
    InputGradientCalls,
    prepare_forward,
    prepare_grad_input,
    prepare_grad_weight,
)
from shorthaul.conv.emit_function import sum_dtype
from shorthaul.conv.emit_grad_bias import BLOCK_PIXELS, grad_bias_kernel
from shorthaul.conv.emit_winograd import transform_weights
from shorthaul.conv.geometry import as_triple
from shorthaul.conv.packing import (
    WeightView,
    bundle_groups,
    forward_view,
    gradient_view,
    pack_panels,
    packed_values,
    packed_weights,
    pair_weights,
    panel_kernel,
    turn_weights,
)
from shorthaul.conv.problem import NO_PADDING, ConvProblem, Triple, source_index
from shorthaul.conv.schedule import ConvSchedule
from shorthaul.jit.runtime import kernel_threads

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def supports(problem: ConvProblem) -> str | None:
    """Why no generated kernel applies to `problem`; `None` where one does."""
    if problem.dtype not in DTYPES:
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
    call = prepare_forward(
        problem,
        (batch, depth, height, width),
        schedule,
        kernel_threads(),
        has_scaled_weights=weight_scale is not None,
    )
    if out is None:
        out = torch.empty_strided(
            call.out_shape, call.out_strides, dtype=problem.dtype, device="cpu"
        )
    return run_prepared(
        call, problem, input, weight, bias, residual, out, weight_scale, is_trained=is_trained
    )


def run_prepared(
    call: Call,
    problem: ConvProblem,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    weight_scale: torch.Tensor | None = None,
    *,
    is_trained: bool = False,
) -> torch.Tensor:
    """The same for a call that was planned before; leading dimensions of one may be left away."""
    if not call.is_empty:
        if is_trained:
            packed = _pack(call, weight, problem, weight_scale)
            panels_of_bias = None if bias is None else _pack_bias(call, bias)
        else:
            packed = find_packed(call, problem, weight, weight_scale)
            panels_of_bias = None if bias is None else find_packed_bias(call, bias)
        call.run(
            input,
            packed,
            panels_of_bias,
            residual,
            out,
            find_workspace(call.workspace_bytes),
            call.numbers,
        )
    return out


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
        padded = as_triple(
            size + low + high
            for size, (low, high) in zip(input_sizes, problem.padding, strict=True)
        )
        # What was repeated is added up before it is rounded to 16 bits.
        real = sum_dtype(problem.dtype)
        unpadded = replace(problem, padding=NO_PADDING, padding_mode="zeros", dtype=real)
        whole = run_grad_input(unpadded, grad_output.to(real), weight.to(real), padded)
        return _fold(problem, whole, input_sizes).to(problem.dtype)
    if not (grad_output.numel() and weight.numel()):
        return _zeros(problem, batch, input_sizes)
    planned = prepare_grad_input(problem, batch, input_sizes, kernel_threads())
    return run_prepared_grad_input(
        planned, problem, grad_output, weight, batch, input_sizes, is_trained=is_trained
    )


def run_prepared_grad_input(
    planned: InputGradientCalls,
    problem: ConvProblem,
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    batch: int,
    input_sizes: Triple,
    *,
    is_trained: bool,
) -> torch.Tensor:
    """The same for calls that were planned before, with padding of zeros."""
    gradient = _zeros(problem, batch, input_sizes, is_needed=not planned.is_covered)

    def pack() -> list[torch.Tensor]:
        return [_pack(call, weight, problem) for call in planned.phases]

    # Of all phases at once, so that the weights are looked at once.
    orders = planned.order_names
    of_phases = pack() if is_trained else packed_weights.find(weight, orders, pack)
    for call, packed in zip(planned.phases, of_phases, strict=True):
        workspace = find_workspace(call.workspace_bytes)
        call.run(grad_output, packed, None, None, gradient, workspace, call.numbers)
    return gradient


def _zeros(
    problem: ConvProblem, batch: int, sizes: Triple, *, is_needed: bool = True
) -> torch.Tensor:
    """An input gradient of the problem's layout; zeros only where they are needed."""
    make = torch.zeros if is_needed else torch.empty
    if problem.layout == "contiguous":
        return make((batch, problem.in_channels, *sizes), dtype=problem.dtype)
    return make((batch, *sizes, problem.in_channels), dtype=problem.dtype).permute(0, 4, 1, 2, 3)


def run_grad_weight(
    problem: ConvProblem, grad_output: torch.Tensor, input: torch.Tensor
) -> torch.Tensor:
    """The gradient of the weight, in the canonical shape."""
    batch, _, depth, height, width = input.shape
    gradient = torch.empty(problem.weight_shape, dtype=sum_dtype(problem.dtype), device="cpu")
    if not (grad_output.numel() and gradient.numel()):
        return gradient.zero_().to(problem.dtype)
    call = prepare_grad_weight(problem, (batch, depth, height, width), kernel_threads())
    run_prepared_grad_weight(call, problem, grad_output, input, gradient)
    return gradient.to(problem.dtype)


def run_prepared_grad_weight(
    call: Call,
    problem: ConvProblem,
    grad_output: torch.Tensor,
    input: torch.Tensor,
    gradient: torch.Tensor,
) -> None:
    """The same for a call that was planned before, into `gradient`, which has the dtype of the sums."""
    if call.task.channels_last and problem.layout != "channels_last":
        input = input.contiguous(memory_format=torch.channels_last_3d)
        grad_output = grad_output.contiguous(memory_format=torch.channels_last_3d)
    view = find_view(call, problem.weight_shape, gradient.shape, gradient.stride())
    # The depthwise kernel adds to what is there, the others store their first block.
    make = torch.zeros if call.is_depthwise else torch.empty
    packed = make(call.stretches * packed_values(view, call.panel), dtype=call.real)
    call.run(input, grad_output, packed, find_workspace(call.workspace_bytes), call.numbers)
    panel_kernel(call.real).unpack_panels(packed, gradient, *view.numbers(), call.panel, call.lanes)


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


def find_packed(
    call: Call,
    problem: ConvProblem,
    weight: torch.Tensor,
    weight_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weights as a call reads them, packed once."""
    packed: torch.Tensor = packed_weights.find(
        weight,
        call.order_name,
        lambda: _pack(call, weight, problem, weight_scale),
        weight_scale,
    )
    return packed


def _pack(
    call: Call,
    weight: torch.Tensor,
    problem: ConvProblem,
    weight_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    if call.pair_order is not None:
        taps = weight.detach().reshape(problem.weight_shape)
        if call.taps is not None:
            taps = turn_weights(taps, problem.groups, call.taps, call.task.shape.kernel)
        paired = pair_weights(taps, call.pair_order)
        view = forward_view(paired, problem.groups)
        return pack_panels(paired, view, call.panel, call.lanes, torch.float32)
    taps = weight.detach()
    if taps.dtype != call.real:
        taps = taps.to(call.real)
    if weight_scale is not None:
        taps = taps * weight_scale.to(call.real).view(-1, *(1,) * (taps.dim() - 1))
    shape: tuple[int, ...] = problem.weight_shape
    if call.winograd_outputs:
        taps = transform_weights(taps.reshape(shape), call.winograd_outputs).contiguous()
        shape = taps.shape
    view = find_view(call, shape, taps.shape, taps.stride())
    return pack_panels(taps, view, call.panel, call.lanes, call.real)


@functools.lru_cache(maxsize=4096)
def find_view(
    call: Call, canonical: tuple[int, ...], shape: tuple[int, ...], strides: tuple[int, ...]
) -> WeightView:
    """Where a call finds weights of this shape, which may lack the leading ones of the canonical one."""
    taps = torch.empty_strided(shape, strides, device="meta", dtype=torch.float32).view(canonical)
    groups = call.task.shape.groups
    if call.taps is not None:
        view = gradient_view(taps, groups, call.taps, call.task.shape.kernel)
    else:
        view = forward_view(taps, canonical[0] // call.panel if call.is_grouped else groups)
        view = replace(view, channel_chunk=call.channel_chunk)
    if call.bundled > 1:
        return bundle_groups(view, call.bundled)
    return _as_one_panel(view) if call.is_depthwise else view


def _as_one_panel(view: WeightView) -> WeightView:
    """Depthwise weights: every group's one output channel is a channel of the same panel."""
    return replace(view, groups=1, out_channels=view.groups, out_step=view.group_step)


@functools.lru_cache(maxsize=4096)
def find_bias_view(call: Call) -> WeightView | None:
    """Where a call finds a bias that has to be packed for it; `None` where it is read as it lies."""
    shape = call.task.shape
    groups, channels = (
        (1, shape.groups) if call.is_depthwise else (shape.groups, shape.out_channels)
    )
    view = WeightView(groups, channels, 1, (1, 1, 1), 0, channels, 1, 1, (1, 1, 1))
    if call.bundled > 1:
        return bundle_groups(view, call.bundled)
    # The planar kernel takes one channel at a time; others read whole vectors, filled up with zeros.
    is_filled = not call.is_grouped and call.lanes > 1 and channels % call.panel != 0
    return view if is_filled else None


def find_packed_bias(call: Call, bias: torch.Tensor) -> torch.Tensor:
    """The bias as a call reads it: packed once, or where it lies."""
    if find_bias_view(call) is None and bias.dtype == call.real and bias.is_contiguous():
        return bias
    order = ("bias", find_bias_view(call), call.panel, call.lanes, call.real)
    packed: torch.Tensor = packed_weights.find(bias, order, lambda: _pack_bias(call, bias))
    return packed


def _pack_bias(call: Call, bias: torch.Tensor) -> torch.Tensor:
    view, values = find_bias_view(call), bias.detach().to(call.real).contiguous()
    return values if view is None else pack_panels(values, view, call.panel, call.lanes, call.real)


def _fold(problem: ConvProblem, padded: torch.Tensor, sizes: Triple) -> torch.Tensor:
    """Add the gradient of padding to the values that it was copied from."""
    for dimension, (size, (low, high)) in enumerate(zip(sizes, problem.padding, strict=True)):
        if low or high:
            sources = [
                source_index(position, size, problem.padding_mode)
                for position in range(-low, size + high)
            ]
            shape = list(padded.shape)
            shape[2 + dimension] = size
            folded = padded.new_zeros(shape)
            padded = folded.index_add_(
                2 + dimension, torch.tensor(sources, dtype=torch.int64, device="cpu"), padded
            )
    layout = (
        torch.channels_last_3d if problem.layout == "channels_last" else torch.contiguous_format
    )
    return padded.contiguous(memory_format=layout)


# Workspaces grow by steps: one of a new size for every larger image would leave the allocator with the old ones.
WORKSPACE_STEP = 1 << 20

_memory = threading.local()


def find_workspace(size_bytes: int) -> torch.Tensor:
    """Scratch memory of this Python thread; kept, because fresh pages cost more than the packing."""
    kept: torch.Tensor | None = getattr(_memory, "workspace", None)
    if kept is None or kept.numel() < size_bytes:
        size_bytes = -(-size_bytes // WORKSPACE_STEP) * WORKSPACE_STEP
        kept = torch.empty(size_bytes + 64, dtype=torch.uint8, device="cpu")
        kept = kept[-kept.data_ptr() % 64 :]
        _memory.workspace = kept
    return kept
