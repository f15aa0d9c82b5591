"""One planned call: its kernel, its numbers, the order of its weights, its workspace. It holds no tensor of the user's.

Everything that runs a kernel runs a `ConvPlan`: operators, repeated calls, steps of training, transposed convolutions.
Plans are kept, because to plan takes longer than a small convolution, in one place, and forgotten all together.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch

from shorthaul.conv.layout.weights import WeightLayout
from shorthaul.conv.methods.base import ConvSchedule, Method
from shorthaul.conv.planning.choice import (
    Sizes,
    find_method,
    find_schedule,
    schedule_gradient,
    schedule_pass,
    schedule_widened,
)
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.problem.geometry import Taps, WindowTask, forward_task, grad_input_tasks
from shorthaul.errors import KernelPendingError
from shorthaul.jit import KernelFunction
from shorthaul.jit.compiling.loading import (
    forget_pending,
    kept_when_ready,
    load_when_ready,
    unless_pending,
)
from shorthaul.units import format_bytes

# Nothing lies between the workspaces of two threads for so long (4 channels per group on two distant cores:
# 249 us side by side, 180 with 64 KiB in between, 143 with 256). The likely cause, inferred from how far apart is
# enough: a processor that sees steps from plane to plane fetches some steps ahead, from what the next thread is
# writing. Pages that are never touched take no memory.
APART_BYTES = 256 * 1024
# Workspaces grow by steps: one of a new size for every larger image would leave the allocator with the old ones.
WORKSPACE_STEP = 1 << 20
MOST_PLANS = 4096

Kept = TypeVar("Kept")


@dataclass(frozen=True, eq=False)
class ConvPlan:
    """What of a call does not change with the tensors."""

    problem: ConvProblem
    task: WindowTask
    schedule: ConvSchedule
    kernel: KernelFunction
    numbers: torch.Tensor  # as the kernel takes them
    weights: WeightLayout
    thread_bytes: int  # of workspace that a thread uses
    threads: int
    stretches: int = 1  # sums of the weights' gradient that are made before they are added up
    adds_up: bool = False  # whether they are added to what is there

    @functools.cached_property
    def workspace_bytes(self) -> int:
        """All threads' workspace, with what lies between them."""
        return self.threads * (self.thread_bytes + APART_BYTES) if self.thread_bytes else 0

    @functools.cached_property
    def _numbers_address(self) -> int:
        return self.numbers.data_ptr()

    @functools.cached_property
    def canonical(self) -> tuple[int, ...]:
        """The weight's shape with all three dimensions."""
        return self.problem.weight_shape

    @functools.cached_property
    def out_shape(self) -> tuple[int, ...]:
        """The output's shape."""
        return (self.task.batch, self.problem.out_channels, *self.task.full_sizes)

    @functools.cached_property
    def out_strides(self) -> tuple[int, ...]:
        """How the output lies in memory."""
        like = torch.empty(self.out_shape, device="meta", dtype=torch.uint8)
        layout = torch.channels_last_3d if self.task.channels_last else torch.contiguous_format
        return torch.empty_like(like, memory_format=layout).stride()

    def run(
        self,
        input: torch.Tensor,
        weights: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        output: torch.Tensor,
    ) -> None:
        """Run the kernel on dense tensors, with weights and a bias as it reads them."""
        self.kernel.at(
            input.data_ptr(),
            weights.data_ptr(),
            None if bias is None else bias.data_ptr(),
            None if residual is None else residual.data_ptr(),
            output.data_ptr(),
            find_workspace(self.workspace_bytes).data_ptr(),
            self._numbers_address,
            self.threads,
        )

    def run_at(
        self,
        input: int,
        weights: int,
        bias: int | None,
        residual: int | None,
        output: int,
        workspace: int,
    ) -> None:
        """The same on addresses, with weights and a bias that lie in the workspace."""
        self.kernel.at(
            input,
            weights,
            bias,
            residual,
            output,
            workspace,
            self._numbers_address,
            self.threads,
        )

    def sum_windows(self, input: int, gradient: int, sums: int, workspace: int) -> None:
        """Run the kernel of a gradient of the weights on addresses; `sums` are in its own order."""
        self.kernel.at(input, gradient, sums, workspace, self._numbers_address, self.threads)

    def explain(self) -> str:
        """Every stage: the problem, its sizes, the schedule, memory, and the kernel's text."""
        task, weights = self.task, self.weights
        return (
            f"{self.problem.describe()}\n"
            f"{task.batch} images of {task.in_sizes} to {task.out_sizes}, {task.flops:,} operations\n"
            f"by {self.schedule.describe()}, {self.threads} threads\n"
            f"workspace: {format_bytes(self.thread_bytes)} per thread; weights: "
            f"{type(weights).__name__} of {weights.panel} output channels\n\n"
            f"{self.kernel.source.complete_text()}"
        )


_kept: dict[Hashable, Any] = {}


def recall(key: Hashable) -> Any:
    """What is kept under a key, or `None`."""
    return _kept.get(key)


def keep(key: Hashable, made: Kept) -> Kept:
    """Keep a plan, or what leads to one, until plans are forgotten."""
    if len(_kept) >= MOST_PLANS:
        _kept.clear()
    _kept[key] = made
    return made


def forget_plans() -> None:
    """Plan every call anew, because a better schedule is remembered now."""
    _kept.clear()
    forget_pending()


def keep_when_ready(key: Hashable, make: Callable[[], Kept]) -> Kept:
    """Keep a plan once its kernels are there; `KernelPendingError` until then."""
    return keep(key, unless_pending(key, make))


def plan_forward(
    problem: ConvProblem,
    sizes: Sizes,
    schedule: ConvSchedule | None,
    threads: int,
    *,
    has_scaled_weights: bool = False,
) -> ConvPlan:
    """The plan of a forward pass that has something to compute.

    Weights with a scale are not rounded to 16 bits, so they are never multiplied as pairs.
    """
    key = (problem, sizes, schedule, threads, has_scaled_weights)
    kept: ConvPlan | None = _kept.get(key)
    if kept is not None:
        return kept

    def plan() -> ConvPlan:
        task = forward_task(problem, sizes[0], sizes[1:])
        chosen = schedule or find_schedule(problem, sizes, threads)
        if has_scaled_weights and chosen.has_pairs:
            chosen = schedule_widened(replace(task, exact=True))
        return _plan(problem, task, None, chosen, threads)

    return keep_when_ready(key, plan)


class InputGradientPlans(NamedTuple):
    """A plan per phase, and whether together they write every value."""

    phases: tuple[ConvPlan, ...]
    is_covered: bool
    name: str  # of the order of all phases' weights


def plan_grad_input(problem: ConvProblem, sizes: Sizes, threads: int) -> InputGradientPlans:
    """The gradient of images of these sizes."""
    key = ("input", problem, sizes, threads)
    kept: InputGradientPlans | None = _kept.get(key)
    if kept is not None:
        return kept

    def plan() -> InputGradientPlans:
        tasks = grad_input_tasks(problem, sizes[0], sizes[1:])
        count = 1
        for stride, size in zip(problem.stride, sizes[1:], strict=True):
            count *= min(stride, size)
        phases, pending = [], None
        for task, taps in tasks:
            try:
                phases.append(_plan(problem, task, taps, schedule_pass(task), threads))
            except KernelPendingError as error:  # the others are asked for, too
                pending = error
        if pending is not None:
            raise pending
        name = "\n".join(each.weights.name for each in phases)
        return InputGradientPlans(tuple(phases), len(tasks) == count, name)

    return keep_when_ready(key, plan)


def plan_grad_weight(problem: ConvProblem, sizes: Sizes, threads: int) -> ConvPlan:
    """The gradient of the weights; `task` says how its tensors have to lie."""
    key = ("weight", problem, sizes, threads)
    kept: ConvPlan | None = _kept.get(key)
    if kept is not None:
        return kept

    def plan() -> ConvPlan:
        task = forward_task(problem, sizes[0], sizes[1:])
        task = replace(task, activation=None, exact=True, is_forward=False)
        return _plan(problem, task, None, schedule_gradient(task), threads)

    return keep_when_ready(key, plan)


def _plan(
    problem: ConvProblem,
    task: WindowTask,
    taps: Taps | None,
    schedule: ConvSchedule,
    threads: int,
) -> ConvPlan:
    method = find_method(schedule)
    planned = method.plan(task, taps, schedule, threads)
    return ConvPlan(
        problem,
        planned.task,
        schedule,
        _load(method, planned.kernel),
        torch.tensor(planned.all_numbers(APART_BYTES), dtype=torch.int64, device="cpu"),
        planned.weights,
        planned.thread_bytes,
        threads,
        planned.stretches,
        planned.adds_up,
    )


@kept_when_ready
def _load(method: Method, kernel: Hashable) -> KernelFunction:
    """The function of a kernel; remembered, because to emit its source again takes longer than to run it."""
    loaded = load_when_ready(method.emit(kernel), "ATen")
    function: KernelFunction = getattr(loaded, method.function)
    return function


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
