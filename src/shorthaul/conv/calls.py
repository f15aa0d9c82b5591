"""Planning a call: which kernel, with which numbers, and in which order its weights are packed.

A plan holds no tensor of the user's. It is kept, because to plan takes longer than a small convolution.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
from shorthaul.conv.emit_sweep import SweepKernel, emit_sweep_kernel
from shorthaul.conv.emit_tall import TallKernel, emit_tall_kernel
from shorthaul.conv.emit_window import WindowKernel, emit_window_kernel, find_run_order
from shorthaul.conv.emit_winograd import WinogradKernel, emit_winograd_kernel
from shorthaul.conv.geometry import Taps, WindowTask, forward_task, grad_input_tasks
from shorthaul.conv.gradient_plans import GradientPlan, plan_depthwise_gradient, plan_gradient
from shorthaul.conv.machine import this_machine
from shorthaul.conv.plans import (
    BlockPlan,
    bundles_together,
    can_join_columns,
    choose_windows,
    plan_blocks,
    plan_groups,
    plan_planes,
    plan_rows,
    plan_sliding,
    plan_sweep,
    plan_tall,
    plan_winograd,
    skips_padding,
)
from shorthaul.conv.problem import ConvProblem, Triple
from shorthaul.conv.schedule import (
    DEPTHWISE_TILE,
    ConvSchedule,
    Sizes,
    choose_schedule,
    count_bundled,
    remembered_schedule,
    schedule_gradient,
    schedule_pass,
    schedule_task,
    sweep_machine,
)
from shorthaul.jit import CppSource, KernelFunction, load_kernel

_NO_NUMBERS = torch.empty(0, dtype=torch.int64, device="cpu")

# Nothing lies between the workspaces of two threads for so long (4 channels per group on two distant cores:
# 249 us side by side, 180 with 64 KiB in between, 143 with 256). The likely cause, inferred from how far apart is
# enough: a processor that sees steps from plane to plane fetches some steps ahead, from what the next thread is
# writing. Pages that are never touched take no memory.
APART_BYTES = 256 * 1024


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
    thread_bytes: int = 0  # of workspace that a thread uses
    threads: int = 1
    out_shape: tuple[int, ...] = ()
    out_strides: tuple[int, ...] = ()
    winograd_outputs: int = 0  # of one tile; 0: the weights are not transformed
    pair_order: str | None = None  # what of a window is one run, where weights are packed as pairs
    bundled: int = 1  # groups whose output channels are lanes of one vector in turn
    channel_chunk: int = 0  # input channels whose weights lie together in a panel; 0: all of them
    stretches: int = 1  # sums of the weights' gradient that are made before they are added up

    @functools.cached_property
    def workspace_bytes(self) -> int:
        """All threads' workspace, with what lies between them."""
        return self.threads * (self.thread_bytes + APART_BYTES) if self.thread_bytes else 0

    @functools.cached_property
    def real(self) -> torch.dtype:
        """The dtype of sums and of packed weights."""
        return sum_dtype(self.task.dtype)

    @functools.cached_property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return self.run is _compute_nothing

    @functools.cached_property
    def order_name(self) -> str:
        """`order` as text, whose hash is taken once: a tuple's at each call took microseconds."""
        return repr(self.order)

    @functools.cached_property
    def is_depthwise(self) -> bool:
        """Whether the kernel takes all groups as the channels of one panel."""
        return "depthwise" in self.order

    @functools.cached_property
    def is_grouped(self) -> bool:
        """Whether a vector of output channels holds whole groups, in the order of the channels."""
        return "grouped" in self.order


def _call_numbers(thread_bytes: int, *others: int) -> torch.Tensor:
    """A call's numbers as its kernel takes them: from one thread's workspace to the next, and the others."""
    return torch.tensor((thread_bytes + APART_BYTES, *others), dtype=torch.int64, device="cpu")


def _block_numbers(
    plan: BlockPlan | GradientPlan,
    chunk: int,
    task: WindowTask,
    schedule: ConvSchedule,
    *further: int,
) -> torch.Tensor:
    """Those of a kernel that goes through blocks of windows; a specialised one knows its shape."""
    return _call_numbers(
        plan.thread_bytes,
        plan.block_rows,
        plan.block_columns,
        plan.panel_parts,
        chunk,
        *further,
        *task.size_values(),
        *(() if schedule.is_specialised else task.shape.values()),
    )


def _window_kernel(task: WindowTask, schedule: ConvSchedule) -> WindowKernel:
    return WindowKernel(
        task.dtype,
        task.channels_last,
        task.activation,
        this_machine(),
        schedule.rows,
        schedule.vectors,
        task.shape if schedule.is_specialised else None,
    )


@functools.cache
def _load(
    emit: Callable[[Any], CppSource], kernel: Hashable, name: str = "convolve"
) -> KernelFunction:
    """The function of a kernel; remembered, because to emit its source again takes longer than to run it."""
    function: KernelFunction = getattr(load_kernel(emit(kernel)), name)
    return function


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
    problem: ConvProblem,
    sizes: Sizes,
    schedule: ConvSchedule | None,
    threads: int,
    *,
    has_scaled_weights: bool = False,
) -> Call:
    """The plan of a call: its kernel, its numbers, and the order of its weights.

    Weights with a scale are not rounded to 16 bits, so they are never multiplied as pairs.
    """
    task = forward_task(problem, sizes[0], sizes[1:])
    if task.flops:
        schedule = schedule or find_schedule(problem, sizes, threads)
        if has_scaled_weights and schedule.has_pairs:
            schedule = schedule_task(task)
        call = _prepare(task, None, schedule, threads)
    else:
        call = Call(task, None, _compute_nothing)
    layout = torch.channels_last_3d if task.channels_last else torch.contiguous_format
    shape = (sizes[0], problem.out_channels, *task.out_sizes)
    strides = torch.empty(shape, device="meta", memory_format=layout, dtype=torch.float32).stride()
    return replace(call, out_shape=shape, out_strides=strides)


class InputGradientCalls(NamedTuple):
    """A call per phase, and whether together they write every value."""

    phases: tuple[Call, ...]
    is_covered: bool

    @property
    def order_names(self) -> tuple[str, ...]:
        """The orders of all phases' weights."""
        return tuple(call.order_name for call in self.phases)


@functools.lru_cache(maxsize=4096)
def prepare_grad_input(
    problem: ConvProblem, batch: int, input_sizes: Triple, threads: int
) -> InputGradientCalls:
    """The gradient of images of these sizes."""
    tasks = grad_input_tasks(problem, batch, input_sizes)
    phases = 1
    for stride, size in zip(problem.stride, input_sizes, strict=True):
        phases *= min(stride, size)
    calls = tuple(_prepare(task, taps, schedule_pass(task), threads) for task, taps in tasks)
    return InputGradientCalls(calls, len(tasks) == phases)


def _prepare(task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int) -> Call:
    if schedule.method == "planar":
        return _prepare_planar(task, taps, schedule, threads)
    if schedule.method == "depthwise":
        return _prepare_depthwise(task, taps, schedule, threads)
    if schedule.method == "sliding":
        return _prepare_sliding(task, taps, schedule, threads)
    if schedule.method == "tall":
        return _prepare_tall(task, taps, schedule, threads)
    if schedule.method == "sweep":
        return _prepare_sweep(task, taps, schedule, threads)
    if schedule.method == "grouped":
        return _prepare_grouped(task, schedule, threads)
    if schedule.method.startswith("winograd"):
        return _prepare_winograd(task, schedule, threads)
    task = replace(task, has_pairs=schedule.has_pairs)
    kernel = replace(
        _window_kernel(task, schedule),
        windows=choose_windows(task, schedule),
        has_prefetch=schedule.has_prefetch,
        has_pairs=schedule.has_pairs,
        joins_columns=can_join_columns(task, schedule),
    )
    if kernel.windows == "in_place":
        kernel = replace(kernel, has_padding=skips_padding(task, schedule))
    pair_order = None
    if schedule.has_pairs:
        pair_order = find_run_order(task.shape, kernel.windows, joins_columns=kernel.joins_columns)
    plan = plan_blocks(task, schedule, threads)
    numbers = _block_numbers(
        plan, schedule.depth_chunk, task, schedule, int(skips_padding(task, schedule))
    )
    return Call(
        task,
        taps,
        _load(emit_window_kernel, kernel),
        numbers,
        (taps, kernel.panel, kernel.lanes, task.shape, pair_order),
        kernel.panel,
        kernel.lanes,
        plan.thread_bytes,
        threads,
        pair_order=pair_order,
    )


def _prepare_planar(
    task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
) -> Call:
    plan = plan_planes(task, schedule, threads)
    kernel = PlanarKernel(
        task.dtype,
        task.channels_last,
        task.activation,
        this_machine(),
        schedule.rows,
        schedule.vectors,
    )
    numbers = _call_numbers(
        plan.thread_bytes,
        plan.block_rows,
        plan.block_columns,
        *task.size_values(),
        *task.shape.values(),
    )
    return Call(
        task,
        taps,
        _load(emit_planar_kernel, kernel),
        numbers,
        (taps, schedule.rows, 1, task.shape),
        schedule.rows,
        1,
        plan.thread_bytes,
        threads,
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
        _load(emit_depthwise_kernel, kernel),
        _call_numbers(thread_bytes, *task.size_values(), *task.shape.values()),
        (taps, "depthwise", task.shape),
        channels,
        lanes,
        thread_bytes,
        threads,
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
    numbers = _call_numbers(
        plan.thread_bytes, plan.block_rows, *task.size_values(), *shape.values()
    )
    lanes = machine.lanes(sum_dtype(task.dtype).itemsize)
    # Channels last: [tap][channel], all channels in one panel. Contiguous: [channel][tap].
    channels = -(-shape.groups // lanes) * lanes
    order = (taps, "depthwise", shape) if task.channels_last else (taps, 1, 1, shape)
    panel, width = (channels, lanes) if task.channels_last else (1, 1)
    run = _load(emit_sliding_kernel, kernel)
    return Call(task, taps, run, numbers, order, panel, width, plan.thread_bytes, threads)


def _prepare_tall(
    task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
) -> Call:
    machine, shape = this_machine(), task.shape
    kernel = TallKernel(
        task.dtype,
        task.channels_last,
        task.activation,
        machine,
        schedule.rows,
        schedule.vectors,
    )
    plan = plan_tall(task, schedule, threads)
    numbers = _call_numbers(
        plan.thread_bytes,
        plan.block_rows,
        plan.block_columns,
        *task.size_values(),
        *shape.values(),
    )
    lanes = machine.lanes(sum_dtype(task.dtype).itemsize)
    run = _load(emit_tall_kernel, kernel)
    # A panel per vector of channels: [vector][tap][channel].
    order = (taps, "depthwise", lanes, shape)
    return Call(task, taps, run, numbers, order, lanes, lanes, plan.thread_bytes, threads)


def _prepare_sweep(
    task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
) -> Call:
    machine = sweep_machine(task)
    kernel = SweepKernel(
        task.dtype,
        task.channels_last,
        task.activation,
        machine,
        schedule.rows,
        task.shape,
        count_bundled(task),
    )
    plan = plan_sweep(task, schedule, threads)
    numbers = _call_numbers(
        plan.thread_bytes,
        plan.block_rows,
        plan.block_columns,
        bundles_together(task),
        *task.size_values(),
    )
    # Bundled weights are panels of the groups of a bundle, one for each output channel of a group.
    panel = machine.lanes(task.sum_bytes) if kernel.bundled == 1 else kernel.bundled
    return Call(
        task,
        taps,
        _load(emit_sweep_kernel, kernel),
        numbers,
        (taps, panel, panel, task.shape, kernel.bundled),
        panel,
        panel,
        plan.thread_bytes,
        threads,
        bundled=kernel.bundled,
    )


def _prepare_grouped(task: WindowTask, schedule: ConvSchedule, threads: int) -> Call:
    machine = this_machine()
    lanes = machine.lanes(sum_dtype(task.dtype).itemsize)
    kernel = GroupedKernel(task.dtype, task.activation, machine, schedule.rows, task.shape)
    thread_bytes = plan_groups(task)
    return Call(
        task,
        None,
        _load(emit_grouped_kernel, kernel),
        _call_numbers(thread_bytes, *task.size_values()),
        ("grouped", lanes, task.shape),
        lanes,
        lanes,
        thread_bytes,
        threads,
    )


def _prepare_winograd(task: WindowTask, schedule: ConvSchedule, threads: int) -> Call:
    outputs = int(schedule.method.removeprefix("winograd"))
    kernel = _window_kernel(task, schedule)
    plan = plan_winograd(task, schedule, threads)
    numbers = _block_numbers(plan, schedule.depth_chunk, task, schedule)
    return Call(
        task,
        None,
        _load(emit_winograd_kernel, WinogradKernel(kernel, outputs)),
        numbers,
        ("winograd", outputs, kernel.panel, kernel.lanes, task.shape),
        kernel.panel,
        kernel.lanes,
        plan.thread_bytes,
        threads,
        winograd_outputs=outputs,
    )


@functools.lru_cache(maxsize=4096)
def prepare_grad_weight(problem: ConvProblem, sizes: Sizes, threads: int) -> Call:
    """The gradient of the weights, over packed windows; `task` says how its tensors have to lie."""
    if problem.is_depthwise and problem.out_channels == problem.groups:
        # A copy of contiguous tensors costs less than sums that use one lane of a vector.
        return _prepare_depthwise_gradient(replace(problem, layout="channels_last"), sizes, threads)
    task = replace(forward_task(problem, sizes[0], sizes[1:]), activation=None)
    schedule = schedule_gradient(task)
    kernel = _window_kernel(task, schedule)
    plan = plan_gradient(task, schedule, threads)
    numbers = _block_numbers(plan, plan.channel_chunk, task, schedule, plan.stretches)
    run = _load(emit_grad_weight_kernel, kernel, "sum_windows")
    return Call(
        task,
        None,
        run,
        numbers,
        (),
        kernel.panel,
        kernel.lanes,
        plan.thread_bytes,
        threads,
        channel_chunk=plan.channel_chunk,
        stretches=plan.stretches,
    )


def _prepare_depthwise_gradient(problem: ConvProblem, sizes: Sizes, threads: int) -> Call:
    task = replace(forward_task(problem, sizes[0], sizes[1:]), activation=None)
    machine = this_machine()
    kernel = DepthwiseKernel(task.dtype, None, machine, *DEPTHWISE_TILE)
    lanes = machine.lanes(sum_dtype(task.dtype).itemsize)
    thread_bytes = plan_rows(task)
    parts, stretches = plan_depthwise_gradient(task, threads)
    return Call(
        task,
        None,
        _load(emit_depthwise_gradient, kernel, "sum_windows"),
        _call_numbers(thread_bytes, parts, stretches, *task.size_values(), *task.shape.values()),
        ("depthwise",),
        -(-task.shape.groups // lanes) * lanes,
        lanes,
        thread_bytes,
        threads,
        stretches=stretches,
    )
