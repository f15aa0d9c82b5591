"""How kernels read weights: where each value lies in a tensor, and in which panel it goes.

Pure descriptions: `execution.packing` moves the values.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from shorthaul.conv.problem import Triple
from shorthaul.conv.problem.geometry import KernelShape, Taps, as_triple


@dataclass(frozen=True)
class WeightView:
    """Where the weights of a task lie in a tensor's memory, in values from its first one."""

    groups: int
    out_channels: int  # of one group
    in_channels: int  # of one group
    kernel: Triple
    start: int
    group_step: int
    out_step: int
    in_step: int
    tap_steps: Triple  # negative where taps are turned around
    channel_chunk: int = 0  # input channels whose taps lie together in a panel; 0: all of them

    def numbers(self) -> tuple[int, ...]:
        """In the order of the kernels' arguments."""
        return (
            self.groups, self.out_channels, self.in_channels, *self.kernel,
            self.start, self.group_step, self.out_step, self.in_step, *self.tap_steps,
            self.channel_chunk or self.in_channels,
        )  # fmt: skip


def forward_view(weight: torch.Tensor, groups: int) -> WeightView:
    """Weights (out_channels, in_channels / groups, kd, kh, kw) as the forward pass uses them."""
    out_step, in_step, *tap_steps = weight.stride()
    out_channels, in_channels, *kernel = weight.shape
    per_group = out_channels // groups
    return WeightView(
        groups, per_group, in_channels, as_triple(kernel),
        0, per_group * out_step, out_step, in_step, as_triple(tap_steps),
    )  # fmt: skip


def gradient_view(weight: torch.Tensor, groups: int, taps: Taps, kernel: Triple) -> WeightView:
    """The same weights as the gradient of the input uses them: channels swapped, taps reversed."""
    out_step, in_step, *tap_steps = weight.stride()
    per_group = weight.shape[0] // groups
    start = sum(
        (first + (count - 1) * step) * stride
        for first, count, step, stride in zip(taps.first, kernel, taps.step, tap_steps, strict=True)
    )
    return WeightView(
        groups, weight.shape[1], per_group, kernel,
        start, per_group * out_step, in_step, out_step,
        as_triple(-step * stride for step, stride in zip(taps.step, tap_steps, strict=True)),
    )  # fmt: skip


def bundle_groups(view: WeightView, bundled: int) -> WeightView:
    """The same weights with `bundled` groups side by side: their values of one output channel are neighbors.

    Packed as panels of `bundled` values, in the order [bundle][kw][kh][in_channel][out_channel][group]. Kernels
    have one plane: its place is taken by the rows, whose place is taken by the input channels.
    """
    _, height, width = view.kernel
    _, row_step, column_step = view.tap_steps
    return WeightView(
        view.groups // bundled, bundled, view.out_channels, (height, view.in_channels, width),
        view.start, bundled * view.group_step, view.group_step, view.out_step,
        (row_step, view.in_step, column_step),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class WeightLayout:
    """Panels of output channels, in the order [group][panel][chunk][kw][kd][kh][in_channel of the chunk][output
    channel of the panel]. The last panel of a group is only as many vectors wide as it needs, filled up with zeros.
    """

    shape: KernelShape
    real: torch.dtype  # of sums and of packed values
    panel: int
    lanes: int
    taps: Taps | None = None  # None: all of them, in their order
    channel_chunk: int = 0  # input channels whose taps lie together in a panel; 0: all of them

    # Whether packing moves values and changes none, so that a gradient can be taken back the same way.
    only_moves: ClassVar[bool] = True

    @functools.cached_property
    def name(self) -> str:
        """Equal names mean equal copies; a text, because its hash is taken once."""
        return repr(self)

    def prepare(self, weight: torch.Tensor, canonical: tuple[int, ...]) -> torch.Tensor:
        """What is packed of a weight, which may lack leading dimensions of the canonical shape."""
        return (weight if weight.dtype == self.real else weight.to(self.real)).reshape(canonical)

    def view(self, weight: torch.Tensor) -> WeightView:
        """Where the kernel's weights lie in a 5-D tensor."""
        groups = self.shape.groups
        if self.taps is not None:
            return gradient_view(weight, groups, self.taps, self.shape.kernel)
        return replace(forward_view(weight, groups), channel_chunk=self.channel_chunk)

    @functools.cached_property
    def bias_view(self) -> WeightView | None:
        """Where the values of a bias lie that has to be packed; `None` where it is read as it lies."""
        return self._filled(bias_view(self.shape.groups, self.shape.out_channels))

    def _filled(self, view: WeightView) -> WeightView | None:
        # Single channels are taken one by one; others are read as whole vectors, filled up with zeros.
        return view if self.lanes > 1 and view.out_channels % self.panel != 0 else None


def bias_view(groups: int, channels: int) -> WeightView:
    """A bias of as many channels for each group, as weights of one value."""
    return WeightView(groups, channels, 1, (1, 1, 1), 0, channels, 1, 1, (1, 1, 1))


@dataclass(frozen=True, eq=False)
class ChannelPanels(WeightLayout):
    """Depthwise weights: the one output channel of every group is a channel of the same panels."""

    def view(self, weight: torch.Tensor) -> WeightView:
        """Where the kernel's weights lie in a 5-D tensor."""
        view = super().view(weight)
        return replace(view, groups=1, out_channels=view.groups, out_step=view.group_step)

    @functools.cached_property
    def bias_view(self) -> WeightView | None:
        """Where the values of a bias lie that has to be packed."""
        return self._filled(bias_view(1, self.shape.groups))


@dataclass(frozen=True, eq=False)
class BundledPanels(WeightLayout):
    """Groups of which several share a vector, their output channels in turn."""

    bundled: int = 1

    def view(self, weight: torch.Tensor) -> WeightView:
        """Where the kernel's weights lie in a 5-D tensor."""
        view = super().view(weight)
        return bundle_groups(view, self.bundled) if self.bundled > 1 else view

    @functools.cached_property
    def bias_view(self) -> WeightView | None:
        """Where the values of a bias lie that has to be packed."""
        view = bias_view(self.shape.groups, self.shape.out_channels)
        return bundle_groups(view, self.bundled) if self.bundled > 1 else self._filled(view)


@dataclass(frozen=True, eq=False)
class PairedPanels(WeightLayout):
    """bfloat16 weights two by two: neighbors of a run are the bits of one float32."""

    only_moves: ClassVar[bool] = False
    run_order: str = "windows"  # what of a window is one run

    def prepare(self, weight: torch.Tensor, canonical: tuple[int, ...]) -> torch.Tensor:
        """What is packed of a weight: its pairs, in the order of the kernel's taps."""
        weight = weight.reshape(canonical)
        if self.taps is not None:
            weight = turn_weights(weight, self.shape.groups, self.taps, self.shape.kernel)
        return pair_weights(weight, self.run_order)

    def view(self, weight: torch.Tensor) -> WeightView:
        """Where the kernel's weights lie in a tensor of pairs."""
        return forward_view(weight, self.shape.groups)


def turn_weights(weight: torch.Tensor, groups: int, taps: Taps, kernel: Triple) -> torch.Tensor:
    """What `gradient_view` sees, as a tensor: (in_channels, out_channels / groups, kd, kh, kw) of each group."""
    for dimension, (first, step, count) in enumerate(
        zip(taps.first, taps.step, kernel, strict=True), 2
    ):
        chosen = torch.arange(count - 1, -1, -1, dtype=torch.int64, device="cpu") * step + first
        weight = weight.index_select(dimension, chosen)
    grouped = weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2)
    return grouped.reshape(-1, *grouped.shape[2:])


def pair_weights(weight: torch.Tensor, order: str) -> torch.Tensor:
    """bfloat16 weights with two neighbors of a run as the bits of one float32; an odd one gets a zero.

    The runs (see `WindowKernel.run_order`) are the rows of the result, their pairs its channels: packed, it
    has the order in which the kernel multiplies.

    >>> pair_weights(torch.ones(4, 3, 1, 5, 7, dtype=torch.bfloat16), "rows").shape
    torch.Size([4, 11, 1, 5, 1])
    """
    out_channels, in_channels, depth, height = weight.shape[:4]
    values = {
        "windows": weight[0].numel(),
        "columns": depth * height * in_channels,
        "rows": weight[0, :, 0, 0].numel(),
        "taps": in_channels,
    }
    ordered = weight.permute((0, 2, 3, 4, 1) if order == "rows" else (0, 4, 2, 3, 1))
    runs = ordered.reshape(out_channels, -1, values[order])
    runs = torch.nn.functional.pad(runs, (0, runs.shape[-1] % 2))
    return runs.contiguous().view(torch.float32).transpose(1, 2)[:, :, None, :, None]


def packed_values(view: WeightView, panel: int) -> int:
    """Size of the packed weights."""
    panels = -(-view.out_channels // panel)
    return view.groups * panels * view.in_channels * math.prod(view.kernel) * panel
