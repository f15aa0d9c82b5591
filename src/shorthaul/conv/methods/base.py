"""What a way to compute convolutions says of itself: everything about one method is said by one object.

`METHODS` in `shorthaul.conv.methods` lists them in order of preference; nothing else knows any of them by name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from shorthaul.conv.layout.function import count_variable
from shorthaul.conv.layout.weights import WeightLayout
from shorthaul.conv.problem.geometry import KernelShape, Taps, WindowTask
from shorthaul.conv.problem.machine import this_machine
from shorthaul.jit import CppSource

# Below this much work a kernel compiled for the shape cannot earn back the second that it takes to
# compile; the general kernel of the same method is compiled once for all shapes.
SPECIALIZED_FLOPS = 20_000_000


@dataclass(frozen=True)
class ConvSchedule:
    """One way to carry out a convolution."""

    method: str  # window: vectors of output channels; planar: vectors of neighboring outputs; depthwise: of channels
    rows: int  # of the register tile
    vectors: int  # of the register tile
    is_specialized: bool = True
    strip_bytes: int | None = None  # packed windows per thread; None: the papers' whole tensor
    depth_chunk: int = 4608  # values of a window that are summed before the next tile of windows
    windows: str | None = None  # where windows are read; None: what suits the task
    has_prefetch: bool = True  # whether lines of the output are asked for before they are written
    has_pairs: bool = False  # whether bfloat16 values are multiplied two by two (method window)

    def describe(self) -> str:
        """One line that tells it from the others; the tuner's name for it."""
        strips = (
            "whole tensor" if self.strip_bytes is None else f"strips {self.strip_bytes >> 10} KiB"
        )
        further = "" if self.is_specialized else " general"
        further += "" if self.windows is None else f" {self.windows}"
        further += "" if self.has_prefetch else " without prefetch"
        further += " pairs" if self.has_pairs else ""
        return (
            f"{self.method} {self.rows}x{self.vectors} {strips} chunk {self.depth_chunk}{further}"
        )


@dataclass(frozen=True)
class KernelPlan:
    """What a method makes of one task: which kernel runs, with which numbers, and how its weights lie."""

    task: WindowTask
    kernel: Hashable  # what decides its text; `Method.emit` writes it
    # The kernel's own, a named tuple: first `thread_bytes`, a thread's workspace, and last `places`, of its pieces.
    numbers: Any
    weights: WeightLayout
    constant_shape: KernelShape | None  # what of the shape is part of the text, and no number
    stretches: int = 1  # sums of the weights' gradient that are made before they are added up
    adds_up: bool = False  # whether sums of the weights' gradient are added to what is there

    @property
    def thread_bytes(self) -> int:
        """Workspace that a thread uses."""
        return int(self.numbers.thread_bytes)

    def all_numbers(self, apart_bytes: int) -> tuple[int, ...]:
        """As the kernel reads them, with so much between the workspaces of two threads."""
        *own, places = self.numbers._replace(thread_bytes=self.thread_bytes + apart_bytes)
        shape = self.task.shape.values()[: count_variable(self.constant_shape)]
        return (*own, *self.task.size_values(), *shape, *places)


class Method:
    """A way to compute a convolution, or the gradient of its weights."""

    name: str
    function = "convolve"  # the kernel's; `sum_windows` for a gradient of the weights
    multiplies_pairs = False  # of bfloat16 values

    def applies(self, task: WindowTask) -> bool:
        """Whether the method computes the task at all."""
        return True

    def prefers(self, task: WindowTask) -> bool:
        """Whether it is taken without measuring, if no method before it in the list is and it applies."""
        return True

    def schedule(self, task: WindowTask) -> ConvSchedule:
        """How it computes the task unless something else was measured to be faster."""
        raise NotImplementedError

    def candidates(self, task: WindowTask) -> tuple[ConvSchedule, ...]:
        """The schedules that are worth measuring."""
        return (self.schedule(task),)

    def refine(self, schedule: ConvSchedule) -> tuple[ConvSchedule, ...]:
        """What is measured in place of the schedule that would be taken without measuring."""
        return (schedule,)

    def plan(
        self, task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
    ) -> KernelPlan:
        """The kernel, its numbers, its workspace and its weights; pure, nothing is compiled."""
        raise NotImplementedError

    def emit(self, kernel: Any) -> CppSource:
        """The kernel's text."""
        raise NotImplementedError


def preferred(methods: Iterable[Method], task: WindowTask) -> Method:
    """The first of the methods that computes the task and is taken without measuring."""
    return next(each for each in methods if each.applies(task) and each.prefers(task))


def can_pair(task: WindowTask) -> bool:
    """Whether bfloat16 values are multiplied two by two, at twice the speed of float32.

    Sums of pairs have other bits than sums of widened values, so nothing but the problem decides.
    Depthwise and few output channels are left to kernels that widen.
    """
    shape, machine = task.shape, this_machine()
    return (
        task.dtype == torch.bfloat16
        and machine.multiplies_pairs
        and shape.in_channels > 1
        and 2 * shape.out_channels > machine.lanes(task.sum_bytes)
    )
