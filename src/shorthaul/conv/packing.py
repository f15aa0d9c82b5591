"""Weights in the order that kernels read them, packed once and remembered until they change.

A packed copy belongs to one tensor object and its values, all of which are looked at by every call (see
`fingerprint`): whoever writes to them, and however, the next call packs again. Of tensors that were frozen
only the version is looked at. When the tensor goes, so does its copy.
"""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from shorthaul.conv.fingerprint import look_at
from shorthaul.conv.geometry import Taps, as_triple
from shorthaul.conv.machine import this_machine
from shorthaul.conv.problem import Triple
from shorthaul.jit import (
    CppSource,
    Function,
    Kernel,
    NumberArgument,
    TensorArgument,
    ThreadsArgument,
    load_kernel,
)


@dataclass(frozen=True)
class _Copies:
    """The packed copies of one tensor, and what was seen of it when they were made."""

    reference: weakref.ref[torch.Tensor]
    seen: object
    by_order: dict[object, Any] = field(default_factory=dict)


class PackedWeights:
    """Packed copies by tensor, values and order."""

    def __init__(self) -> None:
        self._copies: dict[int, _Copies] = {}
        self._lock = threading.Lock()

    def find(
        self,
        weight: torch.Tensor,
        order: object,
        pack: Callable[[], Any],
        scale: torch.Tensor | None = None,
    ) -> Any:
        """The copy of `weight` in `order`, made by `pack` unless there is one that is current.

        `scale` is what `pack` reads besides.
        """
        key, seen = id(weight), _look_at_both(weight, scale)
        if seen is None:
            return pack()
        with self._lock:
            found = self._copies.get(key)
            if found is None or found.reference() is not weight or found.seen != seen:
                reference = weakref.ref(weight, functools.partial(self._forget, key))
                found = self._copies[key] = _Copies(reference, seen)
            kept = found.by_order.get(order)
            if kept is not None:
                return kept
        packed = pack()
        # Else somebody wrote while it was packed, and might write the old values again.
        if _look_at_both(weight, scale) == seen:
            with self._lock:
                found.by_order[order] = packed
        return packed

    def _forget(self, key: int, reference: weakref.ref[torch.Tensor]) -> None:
        # No lock: a finaliser may run while this very thread holds it.
        found = self._copies.get(key)
        if found is not None and found.reference is reference:
            del self._copies[key]

    def __len__(self) -> int:
        return len(self._copies)


def _look_at_both(weight: torch.Tensor, scale: torch.Tensor | None) -> object:
    seen = look_at(weight)
    if seen is None or scale is None:
        return seen
    of_scale = look_at(scale)
    return None if of_scale is None else (seen, of_scale)


packed_weights = PackedWeights()


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
    """The same weights with `bundled` groups side by side: their values of one output channel are neighbours.

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
    """bfloat16 weights with two neighbours of a run as the bits of one float32; an odd one gets a zero.

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


def pack_panels(
    weight: torch.Tensor, view: WeightView, panel: int, lanes: int, real: torch.dtype
) -> torch.Tensor:
    """The weights as panels of output channels.

    The order is [group][panel][chunk][kw][kd][kh][in_channel of the chunk][output channel of the panel]. The
    last panel of a group is only as many vectors of `lanes` wide as it needs, and filled up with zeros.
    """
    packed = torch.empty(packed_values(view, panel), dtype=real, device="cpu")
    if packed.numel():
        panel_kernel(real).pack_panels(weight, packed, *view.numbers(), panel, lanes)
    return packed


def packed_values(view: WeightView, panel: int) -> int:
    """Size of the packed weights."""
    panels = -(-view.out_channels // panel)
    return view.groups * panels * view.in_channels * math.prod(view.kernel) * panel


@functools.cache
def panel_kernel(real: torch.dtype) -> Kernel:
    """`pack_panels`, and `unpack_panels` for the way back."""
    numbers = tuple(
        NumberArgument(name, "int64")
        for name in (
            "groups", "out_channels", "in_channels", "depth", "height", "width", "start",
            "step_group", "step_out", "step_in", "step_d", "step_h", "step_w", "channel_chunk",
            "panel", "lanes",
        )
    )  # fmt: skip
    weights = TensorArgument("weights", real, is_contiguous=False)
    packed = TensorArgument("packed", real)
    functions = (
        Function(
            "pack_panels", (weights, replace(packed, is_written=True), *numbers, ThreadsArgument())
        ),
        Function(
            "unpack_panels",
            (packed, replace(weights, is_written=True), *numbers, ThreadsArgument()),
        ),
    )
    c_type = "double" if real == torch.float64 else "float"
    text = _PANEL_TEXT
    for name, value in (
        ("TYPE", c_type),
        ("LANES", str(this_machine().lanes(real.itemsize))),
        ("PACK_PROTOTYPE", functions[0].prototype()),
        ("UNPACK_PROTOTYPE", functions[1].prototype()),
        ("NUMBERS", ", ".join(each.name for each in numbers)),
        ("DECLARED_NUMBERS", ", ".join(f"int64_t {each.name}" for each in numbers)),
    ):
        text = text.replace("{" + name + "}", value)
    return load_kernel(CppSource(f"conv_panels_{c_type}", text, functions))


_PANEL_TEXT = """\
// Weights to and from panels: [group][panel][chunk][kw][kd][kh][in_channel of the chunk][output channel of the panel].
#define SHORTHAUL_REAL {TYPE}
#define SHORTHAUL_LANES {LANES}
#include <vector>

#include "shorthaul/conv/methods/vector.h"
#include "shorthaul/jit/include/parallel.h"

using shorthaul::load;
using shorthaul::load_part;
using shorthaul::store;
using shorthaul::store_part;
using shorthaul::real;
using shorthaul::vec;
using Value = shorthaul::AsReal;
constexpr int block = shorthaul::lanes;

// The row of a panel that has an input channel's tap, of `taps`.
static int64_t find_row(int64_t channel, int64_t tap, int64_t in_channels, int64_t taps, int64_t channel_chunk) {
  const int64_t first = channel / channel_chunk * channel_chunk;
  const int64_t together = in_channels - first < channel_chunk ? in_channels - first : channel_chunk;
  return first * taps + tap * together + channel - first;
}

// Where the rows of a panel are, by the place of their weights in one output channel, if those lie in one
// piece in whatever order; else nothing.
static std::vector<int32_t> find_rows(int64_t in_channels, int64_t depth, int64_t height, int64_t width, int64_t step_in,
                                      int64_t step_d, int64_t step_h, int64_t step_w, int64_t channel_chunk) {
  const int64_t taps = depth * height * width, values = in_channels * taps;
  std::vector<int32_t> rows(values, -1);
  for (int64_t w = 0, tap = 0; w < width; ++w) {
    for (int64_t d = 0; d < depth; ++d) {
      for (int64_t h = 0; h < height; ++h, ++tap) {
        for (int64_t channel = 0; channel < in_channels; ++channel) {
          const int64_t place = w * step_w + d * step_d + h * step_h + channel * step_in;
          if (place < 0 || place >= values || rows[place] >= 0) return {};
          rows[place] = int32_t(find_row(channel, tap, in_channels, taps, channel_chunk));
        }
      }
    }
  }
  return rows;
}

// Calls each(number, first weight, output channels, values of a row) for each panel; threads own panels.
template <class Each>
static void for_each_panel(int64_t groups, int64_t out_channels, int64_t start, int64_t step_group, int64_t step_out,
                           int64_t panel, int64_t lanes, int64_t threads, const Each& each) {
  const int64_t panels = (out_channels + panel - 1) / panel;
  shorthaul::parallel_for(groups * panels, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t which = begin; which < end; ++which) {
      const int64_t first = which % panels * panel;
      const int64_t present = out_channels - first < panel ? out_channels - first : panel;
      each(which, start + which / panels * step_group + first * step_out, present, (present + lanes - 1) / lanes * lanes);
    }
  });
}

// Moves weights to panels (`packs`) or back in blocks of as many weights and output channels as a vector has
// lanes, transposed in registers; false where that cannot be done. Few output channels at once: the processor
// fetches ahead for sixteen streams, not for sixty-four.
template <bool packs, class Weights, class Packed>
static bool move_blocks(Weights* weights, Packed* packed, {DECLARED_NUMBERS}, int64_t threads) {
  if (lanes != block || step_out == 1) return false;
  const std::vector<int32_t> rows = find_rows(in_channels, depth, height, width, step_in, step_d, step_h, step_w, channel_chunk);
  if (rows.empty()) return false;
  const int64_t values = int64_t(rows.size());
  const auto move = [&](auto* of_weights, auto* of_panel, const int32_t* row, int64_t count, int64_t channels, int64_t wide) {
    vec taken[block] = {};
    const bool is_whole = count == block && channels == block;
    if constexpr (packs) {
      if (is_whole) {
#pragma GCC unroll 16
        for (int each = 0; each < block; ++each) taken[each] = load(of_weights + each * step_out);
      } else {
        for (int64_t each = 0; each < channels; ++each) taken[each] = load_part<Value>(of_weights + each * step_out, count);
      }
    } else {
      for (int64_t each = 0; each < count; ++each) taken[each] = load(of_panel + row[each] * wide);
    }
    shorthaul::transpose(taken);
    if constexpr (packs) {
      for (int64_t each = 0; each < count; ++each) store(of_panel + row[each] * wide, taken[each]);
    } else if (is_whole) {
#pragma GCC unroll 16
      for (int each = 0; each < block; ++each) store(of_weights + each * step_out, taken[each]);
    } else {
      for (int64_t each = 0; each < channels; ++each) store_part<Value>(of_weights + each * step_out, taken[each], count);
    }
  };
  for_each_panel(groups, out_channels, start, step_group, step_out, panel, lanes, threads,
                 [&](int64_t which, int64_t from, int64_t present, int64_t wide) {
    for (int64_t lane = 0; lane < wide; lane += block) {
      for (int64_t value = 0; value < values; value += block) {
        move(weights + from + lane * step_out + value, packed + which * values * panel + lane, rows.data() + value,
             values - value < block ? values - value : block, present - lane < block ? present - lane : block, wide);
      }
    }
  });
  return true;
}

// Calls each(first of the weights, their step, row of the packed panel, present, wide) for each row.
template <class Each>
static void for_each_row({DECLARED_NUMBERS}, int64_t threads, const Each& each) {
  const int64_t window_rows = depth * height, taps = width * window_rows;
  const int64_t values = taps * in_channels;
  for_each_panel(groups, out_channels, start, step_group, step_out, panel, lanes, threads,
                 [&](int64_t which, int64_t from, int64_t present, int64_t wide) {
    const int64_t to = which * values * panel;
    // In the order of the weights, so that each of the panel's streams runs forwards.
    for (int64_t channel = 0; channel < in_channels; ++channel) {
      for (int64_t d = 0; d < depth; ++d) {
        for (int64_t h = 0; h < height; ++h) {
          for (int64_t w = 0; w < width; ++w) {
            each(from + channel * step_in + d * step_d + h * step_h + w * step_w,
                 to + find_row(channel, w * window_rows + d * height + h, in_channels, taps, channel_chunk) * wide,
                 present, wide);
          }
        }
      }
    }
  });
}

{PACK_PROTOTYPE} {
  if (move_blocks<true>(weights, packed, {NUMBERS}, threads)) return;
  for_each_row({NUMBERS}, threads, [=](int64_t from, int64_t to, int64_t present, int64_t wide) {
    for (int64_t lane = 0; lane < present; ++lane) packed[to + lane] = weights[from + lane * step_out];
    for (int64_t lane = present; lane < wide; ++lane) packed[to + lane] = 0;
  });
}

{UNPACK_PROTOTYPE} {
  if (move_blocks<false>(weights, packed, {NUMBERS}, threads)) return;
  for_each_row({NUMBERS}, threads, [=](int64_t from, int64_t to, int64_t present, int64_t) {
    for (int64_t lane = 0; lane < present; ++lane) weights[from + lane * step_out] = packed[to + lane];
  });
}
"""
