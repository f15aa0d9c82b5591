"""Convolutions as window tasks: what is read, what is written, and which taps lie in between.

A forward pass is one task. The gradient of the input is one task per phase of the stride: the input
positions that share a remainder see the same taps, and are a convolution of the output gradient with
those taps, turned around.

>>> from shorthaul.conv.problem import ConvProblem
>>> tasks = grad_input_tasks(ConvProblem(8, 4, (1, 1, 3), stride=(1, 1, 2)), 1, (1, 1, 9))
>>> [(task.shape.kernel, task.first, taps.first, taps.step) for task, taps in tasks]
[((1, 1, 2), (0, 0, 0), (0, 0, 0), (1, 1, 2)), ((1, 1, 1), (0, 0, 1), (0, 0, 1), (1, 1, 2))]
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product

import torch

from shorthaul.conv.problem import ConvProblem, Triple

PADDING_CODES = {"zeros": 0, "reflect": 1, "replicate": 2, "circular": 3, "symmetric": 4}


@dataclass(frozen=True)
class KernelShape:
    """What a kernel is specialized on; channels are those of one group.

    Without channels it stands for taps alone: a kernel for those serves layers of every width.
    """

    in_channels: int
    out_channels: int
    groups: int
    kernel: tuple[int, int, int]
    stride: tuple[int, int, int]
    dilation: tuple[int, int, int]

    @property
    def has_channels(self) -> bool:
        """Whether channels and groups are part of it."""
        return self.in_channels > 0

    def without_channels(self) -> KernelShape:
        """Its taps alone."""
        return replace(self, in_channels=0, out_channels=0, groups=0)

    @property
    def window_rows(self) -> int:
        """Image rows under a window, those of all its depths together."""
        return self.kernel[0] * self.kernel[1]

    @property
    def column_step(self) -> int:
        """Packed columns from window to window: columns that no window reads are not packed."""
        kernel, stride = self.kernel[2], self.stride[2]
        return kernel if kernel < stride and self.dilation[2] == 1 else stride

    def values(self) -> tuple[int, ...]:
        """In the order of `SHAPE_NAMES`."""
        return (
            self.in_channels, self.out_channels, self.groups,
            *self.kernel, *self.stride, *self.dilation,
        )  # fmt: skip

    def describe(self) -> str:
        """Short enough for the name of a kernel."""
        kernel = "x".join(map(str, self.kernel))
        stride = "" if max(self.stride) == 1 else "_s" + "x".join(map(str, self.stride))
        dilation = "" if max(self.dilation) == 1 else "_d" + "x".join(map(str, self.dilation))
        groups = f"_g{self.groups}" if self.groups > 1 else ""
        channels = f"{self.in_channels}to{self.out_channels}" if self.has_channels else "any"
        return f"{channels}_{kernel}{stride}{dilation}{groups}"


@dataclass(frozen=True)
class WindowTask:
    """One pass over windows: sizes of one call, with the shape that its kernel may be built for."""

    shape: KernelShape
    dtype: torch.dtype
    channels_last: bool
    activation: str | None
    batch: int
    in_sizes: Triple
    out_sizes: Triple
    padding: Triple  # before the first value; negative where windows start inside
    padding_mode: str
    full_sizes: Triple  # of the whole output, of which every `step`-th from `first` on is written
    step: Triple = (1, 1, 1)
    first: Triple = (0, 0, 0)
    has_pairs: bool = False  # whether bfloat16 values stay 16 bits, and are multiplied two by two
    exact: bool = True  # False allows arithmetic with a larger rounding error
    is_forward: bool = False  # whether weights are used in their own order

    def size_values(self) -> tuple[int, ...]:
        """In the order of `SIZE_NAMES`."""
        return (
            self.batch, *self.in_sizes, *self.out_sizes,
            *self.padding, PADDING_CODES[self.padding_mode],
            *self.full_sizes, *self.step, *self.first,
        )  # fmt: skip

    @functools.cached_property
    def sum_bytes(self) -> int:
        """Bytes of one sum."""
        return 8 if self.dtype.itemsize == 8 else 4

    @property
    def packed_bytes(self) -> int:
        """Bytes of one packed value."""
        return 2 if self.has_pairs else self.sum_bytes

    @functools.cached_property
    def flops(self) -> int:
        """Floating-point operations, two per multiply and add."""
        shape = self.shape
        window = shape.in_channels * math.prod(shape.kernel)
        return (
            2 * self.batch * math.prod(self.out_sizes) * shape.out_channels * shape.groups * window
        )

    @functools.cached_property
    def windows(self) -> str:
        """Where windows are read: the layout does not change the order of their values.

        ========  ================================================================================
        in_place  the image itself: channels last, nothing to widen, every window inside
        rows      rows of the image, packed once for all output rows of a block
        strips    im2win's strips, one per output row: a window is one run, however few channels
        ========  ================================================================================
        """
        if self._can_read_in_place:
            return "in_place"
        return "rows" if self.has_flat_windows and self.shape.kernel[1] > 1 else "strips"

    @property
    def has_flat_windows(self) -> bool:
        """Whether a window lies in one plane of the image, so that its rows can be packed once and shared."""
        return self.shape.kernel[0] == 1

    def can_read(self, windows: str) -> bool:
        """Whether windows can be read there at all; `windows` says where they are read best."""
        if windows == "in_place":
            return self._can_read_in_place
        return windows == "strips" or self.has_flat_windows

    @functools.cached_property
    def padding_share(self) -> float:
        """The share of the products whose factor is a zero of the padding."""
        if self.padding_mode != "zeros":
            return 0.0
        inside = 1.0
        for dimension, outputs in enumerate(self.out_sizes):
            stride, kernel = self.shape.stride[dimension], self.shape.kernel[dimension]
            size = self.in_sizes[dimension]
            starts = [
                tap * self.shape.dilation[dimension] - self.padding[dimension]
                for tap in range(kernel)
            ]
            products = sum(
                max(0, min(outputs, -((start - size) // stride)) - max(0, -(start // stride)))
                for start in starts
            )
            inside *= products / (outputs * kernel)
        return 1.0 - inside

    @property
    def is_readable(self) -> bool:
        """Whether the image has its values as kernels read them: channels last, nothing to widen."""
        return self.channels_last and (
            self.dtype in (torch.float32, torch.float64) or self.has_pairs
        )

    @property
    def _can_read_in_place(self) -> bool:
        return (
            self.is_readable
            and all(
                low == 0 and (outputs - 1) * stride + (kernel - 1) * dilation < size
                for low, outputs, stride, kernel, dilation, size in zip(
                    self.padding, self.out_sizes, self.shape.stride, self.shape.kernel,
                    self.shape.dilation, self.in_sizes, strict=True,
                )
            )
        )  # fmt: skip


@dataclass(frozen=True)
class Taps:
    """Which values of the kernel a task uses: every `step`-th from `first` on."""

    first: Triple
    step: Triple


def forward_task(problem: ConvProblem, batch: int, in_sizes: Triple) -> WindowTask:
    """The forward pass."""
    out_sizes = problem.output_sizes(in_sizes)
    shape = KernelShape(
        problem.in_channels_per_group,
        problem.out_channels_per_group,
        problem.groups,
        problem.kernel,
        problem.stride,
        # A kernel of one value is not spread: saying so lets more shapes share one kernel.
        as_triple(d if k > 1 else 1 for d, k in zip(problem.dilation, problem.kernel, strict=True)),
    )
    return WindowTask(
        shape,
        problem.dtype,
        problem.layout == "channels_last",
        problem.activation,
        batch,
        in_sizes,
        out_sizes,
        as_triple(low for low, _ in problem.padding),
        problem.padding_mode,
        out_sizes,
        exact=problem.exact,
        is_forward=True,
    )


def grad_input_tasks(
    problem: ConvProblem, batch: int, in_sizes: Triple
) -> tuple[tuple[WindowTask, Taps], ...]:
    """The gradient of a zero-padded input, phase by phase; phases without taps are left out."""
    out_sizes = problem.output_sizes(in_sizes)
    phases = [
        [phase for phase in _phases(problem, dimension, in_sizes[dimension]) if phase.count]
        for dimension in range(3)
    ]
    return tuple(
        (
            WindowTask(
                KernelShape(
                    problem.out_channels_per_group,
                    problem.in_channels_per_group,
                    problem.groups,
                    as_triple(phase.count for phase in chosen),
                    (1, 1, 1),
                    as_triple(phase.dilation for phase in chosen),
                ),
                problem.dtype,
                problem.layout == "channels_last",
                None,
                batch,
                out_sizes,
                as_triple(phase.positions for phase in chosen),
                as_triple(phase.padding for phase in chosen),
                "zeros",
                in_sizes,
                problem.stride,
                as_triple(phase.first for phase in chosen),
            ),
            Taps(
                as_triple(phase.first_tap for phase in chosen),
                as_triple(phase.tap_step for phase in chosen),
            ),
        )
        for chosen in product(*phases)
    )


@dataclass(frozen=True)
class _Phase:
    """Input positions first, first + stride, ... of one dimension, and the taps that reach them."""

    first: int
    positions: int
    first_tap: int
    tap_step: int
    count: int
    dilation: int
    padding: int


def _phases(problem: ConvProblem, dimension: int, size: int) -> list[_Phase]:
    # Tap j of output o touches input position i = o * stride + j * dilation - padding, so the
    # taps that reach i are those with j * dilation = i + padding modulo the stride.
    stride, dilation = problem.stride[dimension], problem.dilation[dimension]
    kernel, padding = problem.kernel[dimension], problem.padding[dimension][0]
    shared = math.gcd(stride, dilation)
    phases = []
    for first in range(min(stride, size)):
        remainder = (first + padding) % stride
        taps = [tap for tap in range(kernel) if (tap * dilation - remainder) % stride == 0]
        spread = dilation // shared if len(taps) > 1 else 1
        start = (first + padding - taps[0] * dilation) // stride if taps else 0
        phases.append(
            _Phase(
                first,
                -(-(size - first) // stride),
                taps[0] if taps else 0,
                stride // shared,
                len(taps),
                spread,
                (len(taps) - 1) * spread - start,
            )
        )
    return phases


def as_triple(values: Iterable[int]) -> Triple:
    """Three values; leading ones where there are fewer, as in a weight of two dimensions.

    >>> as_triple([3, 5])
    (1, 3, 5)
    """
    given = tuple(values)
    first, second, third = (1,) * (3 - len(given)) + given
    return first, second, third
