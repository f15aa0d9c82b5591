"""Running the generated convolution kernels on tensors.

Everything here takes canonical tensors (see `ConvProblem`) and gives exactly what the problem says;
what is faster, and what falls back to ATen, is decided by the callers.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from shorthaul.conv.emit_depthwise import (
    DepthwiseKernel,
    emit_depthwise_gradient,
    emit_depthwise_kernel,
)
from shorthaul.conv.emit_function import sum_dtype
from shorthaul.conv.emit_grad_weight import emit_grad_weight_kernel
from shorthaul.conv.emit_grouped import GroupedKernel, emit_grouped_kernel
from shorthaul.conv.emit_planar import PlanarKernel, emit_planar_kernel
from shorthaul.conv.emit_sliding import SlidingKernel, emit_sliding_kernel
from shorthaul.conv.emit_window import WindowKernel, emit_window_kernel
from shorthaul.conv.emit_winograd import WinogradKernel, emit_winograd_kernel, transform_weights
from shorthaul.conv.geometry import Taps, WindowTask, as_triple, forward_task, grad_input_tasks
from shorthaul.conv.machine import this_machine
from shorthaul.conv.packing import (
    WeightView,
    forward_view,
    gradient_view,
    pack_bias,
    pack_panels,
    packed_values,
    packed_weights,
    panel_kernel,
)
from shorthaul.conv.problem import NO_PADDING, ConvProblem, Triple, source_index
from shorthaul.conv.schedule import (
    DEPTHWISE_TILE,
    ConvSchedule,
    Sizes,
    candidate_schedules,
    choose_schedule,
    choose_windows,
    plan_blocks,
    plan_gradient,
    plan_groups,
    plan_planes,
    plan_rows,
    plan_sliding,
    plan_winograd,
    remembered_schedule,
    schedule_gradient,
    schedule_task,
)
from shorthaul.jit import KernelFunction, load_kernel
from shorthaul.jit.runtime import kernel_threads

__all__ = [
    "ConvSchedule",
    "candidate_schedules",
    "choose_schedule",
    "find_schedule",
    "forget_plans",
    "on_forgotten_plans",
    "prepare_forward",
    "run_forward",
    "run_grad_input",
    "run_grad_weight",
    "run_prepared",
    "supports",
]

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def supports(problem: ConvProblem) -> str | None:
    """Why no generated kernel applies to `problem`; `None` where one does."""
    if problem.dtype not in _DTYPES:
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
    schedule: ConvSchedule | None = None,
    weight_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """activation(convolution + bias + residual); `residual` has the shape and layout of the output.

    With `weight_scale`, one per output channel, `weight` may be of whole numbers: they are widened and
    scaled while they are packed.
    """
    batch, _, depth, height, width = input.shape
    call = prepare_forward(problem, (batch, depth, height, width), schedule, kernel_threads())
    if out is None:
        out = torch.empty_strided(call.out_shape, call.out_strides, dtype=problem.dtype)
    return run_prepared(call, problem, input, weight, bias, residual, out, weight_scale)


def run_prepared(
    call: Call,
    problem: ConvProblem,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    weight_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same for a call that was planned before; leading dimensions of one may be left away."""
    if call.task.flops:
        order = call.order
        if weight_scale is not None:  # a scale that was written to is another order
            order = (*order, id(weight_scale), weight_scale._version)
        packed = packed_weights.find(
            weight, order, lambda: _pack(call, weight, problem, weight_scale)
        )
        call.run(
            input,
            packed,
            None if bias is None else _packed_bias(call, bias),
            residual,
            out,
            _workspace(call.workspace_bytes),
            call.numbers,
        )
    return out


def run_grad_input(
    problem: ConvProblem, grad_output: torch.Tensor, weight: torch.Tensor, input_sizes: Triple
) -> torch.Tensor:
    """The gradient of the input, of spatial sizes `input_sizes`."""
    batch = grad_output.shape[0]
    if problem.padding_mode != "zeros":
        padded = as_triple(
            size + low + high
            for size, (low, high) in zip(input_sizes, problem.padding, strict=True)
        )
        unpadded = replace(problem, padding=NO_PADDING, padding_mode="zeros")
        return _fold(problem, run_grad_input(unpadded, grad_output, weight, padded), input_sizes)
    if not (grad_output.numel() and weight.numel()):
        return _zeros(problem, batch, input_sizes)
    calls, is_covered = _prepare_grad_input(problem, batch, input_sizes, kernel_threads())
    gradient = _zeros(problem, batch, input_sizes, is_needed=not is_covered)
    for call in calls:
        packed = packed_weights.find(
            weight, call.order, functools.partial(_pack, call, weight, problem)
        )
        workspace = _workspace(call.workspace_bytes)
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
    real = sum_dtype(problem.dtype)
    gradient = torch.empty(problem.weight_shape, dtype=real)
    if not (grad_output.numel() and gradient.numel()):
        return gradient.zero_().to(problem.dtype)
    sizes = (batch, depth, height, width)
    view = forward_view(gradient, problem.groups)
    if problem.is_depthwise and problem.out_channels == problem.groups:
        # A copy of contiguous tensors costs less than sums that use one lane of a vector.
        problem = replace(problem, layout="channels_last")
        input = input.contiguous(memory_format=torch.channels_last_3d)
        grad_output = grad_output.contiguous(memory_format=torch.channels_last_3d)
        view = _as_one_panel(view)
        call = _prepare_depthwise_gradient(problem, sizes, kernel_threads())
    else:
        call = _prepare_grad_weight(problem, sizes, kernel_threads())
    packed = torch.zeros(packed_values(view, call.panel), dtype=real)
    call.run(input, grad_output, packed, _workspace(call.workspace_bytes), call.numbers)
    panel_kernel(real).unpack_panels(packed, gradient, *view.numbers(), call.panel, call.lanes)
    return gradient.to(problem.dtype)


_NO_NUMBERS = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Call:
    """What of a call does not change with the tensors: kept, because to plan takes longer than a
    small convolution."""

    task: WindowTask
    taps: Taps | None  # None: all of them, in their order
    run: Callable[..., object]
    numbers: torch.Tensor = _NO_NUMBERS
    order: tuple[object, ...] = ()  # of the packed weights
    panel: int = 0
    lanes: int = 0
    workspace_bytes: int = 0
    out_shape: tuple[int, ...] = ()
    out_strides: tuple[int, ...] = ()
    winograd_outputs: int = 0  # of one tile; 0: the weights are not transformed

    @property
    def is_depthwise(self) -> bool:
        """Whether the kernel takes all groups as the channels of one panel."""
        return "depthwise" in self.order

    @property
    def is_grouped(self) -> bool:
        """Whether a vector of output channels holds whole groups, in the order of the channels."""
        return "grouped" in self.order


def _as_array(*numbers: int) -> torch.Tensor:
    """A call's numbers as its kernel takes them."""
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


def _compute_nothing(*_: object) -> None:
    """The kernel of an empty output."""


def find_schedule(problem: ConvProblem, sizes: Sizes, threads: int) -> ConvSchedule:
    """The schedule that a call takes: what was measured here, else what the cost model prefers."""
    remembered = remembered_schedule(problem, sizes, threads)
    return remembered or choose_schedule(problem, sizes, threads)


_forgetting: list[Callable[[], None]] = []


def on_forgotten_plans(forget: Callable[[], None]) -> None:
    """Have `forget` called whenever planned calls may be out of date."""
    _forgetting.append(forget)


def forget_plans() -> None:
    """Plan every call anew, because a better schedule is remembered now."""
    prepare_forward.cache_clear()
    for forget in _forgetting:
        forget()


@functools.lru_cache(maxsize=4096)
def prepare_forward(
    problem: ConvProblem, sizes: Sizes, schedule: ConvSchedule | None, threads: int
) -> Call:
    """The plan of a call: its kernel, its numbers, and the order of its weights."""
    task = forward_task(problem, sizes[0], sizes[1:])
    call = (
        _prepare(task, None, schedule or find_schedule(problem, sizes, threads), threads)
        if task.flops
        else Call(task, None, _compute_nothing)
    )
    layout = torch.channels_last_3d if task.channels_last else torch.contiguous_format
    shape = (sizes[0], problem.out_channels, *task.out_sizes)
    strides = torch.empty(shape, device="meta", memory_format=layout).stride()
    return replace(call, out_shape=shape, out_strides=strides)


@functools.lru_cache(maxsize=4096)
def _prepare_grad_input(
    problem: ConvProblem, batch: int, input_sizes: Triple, threads: int
) -> tuple[tuple[Call, ...], bool]:
    """A call per phase, and whether together they write every value."""
    tasks = grad_input_tasks(problem, batch, input_sizes)
    phases = 1
    for stride, size in zip(problem.stride, input_sizes, strict=True):
        phases *= min(stride, size)
    calls = tuple(_prepare(task, taps, schedule_task(task), threads) for task, taps in tasks)
    return calls, len(tasks) == phases


def _prepare(task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int) -> Call:
    if schedule.method == "planar":
        return _prepare_planar(task, taps, schedule, threads)
    if schedule.method == "depthwise":
        return _prepare_depthwise(task, taps, schedule, threads)
    if schedule.method == "sliding":
        return _prepare_sliding(task, taps, schedule, threads)
    if schedule.method == "grouped":
        return _prepare_grouped(task, schedule, threads)
    if schedule.method.startswith("winograd"):
        return _prepare_winograd(task, schedule, threads)
    kernel = WindowKernel(
        task.dtype,
        task.channels_last,
        task.activation,
        this_machine(),
        schedule.rows,
        schedule.vectors,
        task.shape if schedule.is_specialised else None,
        choose_windows(task, schedule),
        schedule.has_prefetch,
    )
    plan = plan_blocks(task, schedule, threads)
    numbers = _as_array(
        plan.thread_bytes,
        plan.block_rows,
        plan.block_columns,
        plan.panel_parts,
        schedule.depth_chunk,
        *task.size_values(),
        *(() if schedule.is_specialised else task.shape.values()),
    )
    return Call(
        task,
        taps,
        _window_function(kernel),
        numbers,
        (taps, kernel.panel, kernel.lanes, task.shape),
        kernel.panel,
        kernel.lanes,
        plan.thread_bytes * threads,
    )


def _prepare_planar(
    task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
) -> Call:
    plan = plan_planes(task, schedule)
    kernel = PlanarKernel(
        task.dtype,
        task.channels_last,
        task.activation,
        this_machine(),
        schedule.rows,
        schedule.vectors,
    )
    numbers = _as_array(
        plan.thread_bytes,
        plan.block_rows,
        plan.block_columns,
        *task.size_values(),
        *task.shape.values(),
    )
    return Call(
        task,
        taps,
        _planar_function(kernel),
        numbers,
        (taps, schedule.rows, 1, task.shape),
        schedule.rows,
        1,
        plan.thread_bytes * threads,
    )


def _prepare_depthwise(
    task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
) -> Call:
    machine = this_machine()
    lanes = machine.lanes(sum_dtype(task.dtype).itemsize)
    kernel = DepthwiseKernel(task.dtype, task.activation, machine, schedule.rows, schedule.vectors)
    thread_bytes = plan_rows(task)
    # One panel of all channels, in one group: the order of the packed weights is [tap][channel].
    channels = -(-task.shape.groups // lanes) * lanes
    return Call(
        task,
        taps,
        _depthwise_function(kernel),
        _as_array(thread_bytes, *task.size_values(), *task.shape.values()),
        (taps, "depthwise", task.shape),
        channels,
        lanes,
        thread_bytes * threads,
    )


def _prepare_sliding(
    task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
) -> Call:
    machine, shape = this_machine(), task.shape
    kernel = SlidingKernel(
        task.dtype,
        task.channels_last,
        task.activation,
        machine,
        schedule.rows,
        schedule.vectors,
        shape.kernel[1],
        shape.stride[1],
    )
    plan = plan_sliding(task, schedule)
    numbers = _as_array(plan.thread_bytes, plan.block_rows, *task.size_values(), *shape.values())
    lanes = machine.lanes(sum_dtype(task.dtype).itemsize)
    # Channels last: [tap][channel], all channels in one panel. Contiguous: [channel][tap].
    channels = -(-shape.groups // lanes) * lanes
    order = (taps, "depthwise", shape) if task.channels_last else (taps, 1, 1, shape)
    panel, width = (channels, lanes) if task.channels_last else (1, 1)
    run = _sliding_function(kernel)
    return Call(task, taps, run, numbers, order, panel, width, plan.thread_bytes * threads)


def _prepare_grouped(task: WindowTask, schedule: ConvSchedule, threads: int) -> Call:
    machine = this_machine()
    lanes = machine.lanes(sum_dtype(task.dtype).itemsize)
    kernel = GroupedKernel(task.dtype, task.activation, machine, schedule.rows, task.shape)
    thread_bytes = plan_groups(task)
    return Call(
        task,
        None,
        _grouped_function(kernel),
        _as_array(thread_bytes, *task.size_values()),
        ("grouped", lanes, task.shape),
        lanes,
        lanes,
        thread_bytes * threads,
    )


def _prepare_winograd(task: WindowTask, schedule: ConvSchedule, threads: int) -> Call:
    outputs = int(schedule.method.removeprefix("winograd"))
    window = WindowKernel(
        task.dtype,
        task.channels_last,
        task.activation,
        this_machine(),
        schedule.rows,
        schedule.vectors,
        task.shape if schedule.is_specialised else None,
    )
    plan = plan_winograd(task, schedule, threads)
    numbers = _as_array(
        plan.thread_bytes,
        plan.block_rows,
        plan.block_columns,
        plan.panel_parts,
        schedule.depth_chunk,
        *task.size_values(),
        *(() if schedule.is_specialised else task.shape.values()),
    )
    return Call(
        task,
        None,
        _winograd_function(WinogradKernel(window, outputs)),
        numbers,
        ("winograd", outputs, window.panel, window.lanes, task.shape),
        window.panel,
        window.lanes,
        plan.thread_bytes * threads,
        winograd_outputs=outputs,
    )


@functools.lru_cache(maxsize=4096)
def _prepare_grad_weight(problem: ConvProblem, sizes: Sizes, threads: int) -> Call:
    task = replace(forward_task(problem, sizes[0], sizes[1:]), activation=None)
    schedule = schedule_gradient(task)
    kernel = WindowKernel(
        task.dtype,
        task.channels_last,
        None,
        this_machine(),
        schedule.rows,
        schedule.vectors,
        task.shape if schedule.is_specialised else None,
    )
    plan = plan_gradient(task, schedule, threads)
    numbers = _as_array(
        plan.thread_bytes,
        plan.block_rows,
        plan.block_columns,
        plan.panel_parts,
        plan.channel_chunk,
        *task.size_values(),
        *(() if schedule.is_specialised else task.shape.values()),
    )
    run = _grad_weight_function(kernel)
    return Call(
        task, None, run, numbers, (), kernel.panel, kernel.lanes, plan.thread_bytes * threads
    )


@functools.lru_cache(maxsize=4096)
def _prepare_depthwise_gradient(problem: ConvProblem, sizes: Sizes, threads: int) -> Call:
    task = replace(forward_task(problem, sizes[0], sizes[1:]), activation=None)
    machine = this_machine()
    kernel = DepthwiseKernel(task.dtype, None, machine, *DEPTHWISE_TILE)
    lanes = machine.lanes(sum_dtype(task.dtype).itemsize)
    thread_bytes = plan_rows(task)
    return Call(
        task,
        None,
        load_kernel(emit_depthwise_gradient(kernel)).sum_windows,
        _as_array(thread_bytes, *task.size_values(), *task.shape.values()),
        ("depthwise",),
        -(-task.shape.groups // lanes) * lanes,
        lanes,
        thread_bytes * threads,
    )


@functools.cache
def _window_function(kernel: WindowKernel) -> KernelFunction:
    return load_kernel(emit_window_kernel(kernel)).convolve


@functools.cache
def _planar_function(kernel: PlanarKernel) -> KernelFunction:
    return load_kernel(emit_planar_kernel(kernel)).convolve


@functools.cache
def _depthwise_function(kernel: DepthwiseKernel) -> KernelFunction:
    return load_kernel(emit_depthwise_kernel(kernel)).convolve


@functools.cache
def _sliding_function(kernel: SlidingKernel) -> KernelFunction:
    return load_kernel(emit_sliding_kernel(kernel)).convolve


@functools.cache
def _grouped_function(kernel: GroupedKernel) -> KernelFunction:
    return load_kernel(emit_grouped_kernel(kernel)).convolve


@functools.cache
def _winograd_function(kernel: WinogradKernel) -> KernelFunction:
    return load_kernel(emit_winograd_kernel(kernel)).convolve


@functools.cache
def _grad_weight_function(kernel: WindowKernel) -> KernelFunction:
    return load_kernel(emit_grad_weight_kernel(kernel)).sum_windows


def _pack(
    call: Call,
    weight: torch.Tensor,
    problem: ConvProblem,
    weight_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    real = sum_dtype(problem.dtype)
    taps = weight.detach().reshape(problem.weight_shape).to(real)
    if weight_scale is not None:
        taps = taps * weight_scale.to(real).view(-1, 1, 1, 1, 1)
    if call.winograd_outputs:
        taps = transform_weights(taps, call.winograd_outputs).contiguous()
    view = (
        forward_view(
            taps, problem.out_channels // call.panel if call.is_grouped else problem.groups
        )
        if call.taps is None
        else gradient_view(taps, problem.groups, call.taps, call.task.shape.kernel)
    )
    if call.is_depthwise:  # one panel of all channels
        view = _as_one_panel(view)
    return pack_panels(taps, view, call.panel, call.lanes, real)


def _as_one_panel(view: WeightView) -> WeightView:
    """Depthwise weights: every group's one output channel is a channel of the same panel."""
    return replace(view, groups=1, out_channels=view.groups, out_step=view.group_step)


def _packed_bias(call: Call, bias: torch.Tensor) -> torch.Tensor:
    real = sum_dtype(call.task.dtype)
    shape = call.task.shape
    if call.is_grouped:
        return bias.detach().to(real).contiguous()
    if call.is_depthwise:
        shape = replace(shape, groups=1, out_channels=shape.groups)
    # The planar kernel takes one channel at a time, so its bias is never filled up.
    if bias.dtype == real and (call.lanes == 1 or shape.out_channels % call.panel == 0):
        return bias.detach().contiguous()
    packed: torch.Tensor = packed_weights.find(
        bias,
        (shape.groups, call.panel, call.lanes, real),
        lambda: pack_bias(bias.detach(), shape.groups, 1 if call.lanes == 1 else call.panel, real),
    )
    return packed


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
            padded = folded.index_add_(2 + dimension, torch.tensor(sources), padded)
    layout = (
        torch.channels_last_3d if problem.layout == "channels_last" else torch.contiguous_format
    )
    return padded.contiguous(memory_format=layout)


_memory = threading.local()


def _workspace(size_bytes: int) -> torch.Tensor:
    """Scratch memory of this Python thread; kept, because fresh pages cost more than the packing."""
    kept: torch.Tensor | None = getattr(_memory, "workspace", None)
    if kept is None or kept.numel() < size_bytes:
        kept = torch.empty(size_bytes + 64, dtype=torch.uint8)
        kept = kept[-kept.data_ptr() % 64 :]
        _memory.workspace = kept
    return kept
