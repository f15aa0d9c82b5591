"""Weights in the order that kernels read them, packed once and remembered until they change.

A packed copy belongs to one tensor object and its values, all of which are looked at by every call (see
`fingerprint`): whoever writes to them, and however, the next call packs again. Of tensors that were frozen
only the version is looked at. When the tensor goes, so does its copy.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from shorthaul.conv.execution.fingerprint import look_at
from shorthaul.conv.layout.weights import WeightLayout, WeightView, packed_values
from shorthaul.conv.problem.machine import this_machine
from shorthaul.jit import (
    CppSource,
    Function,
    Kernel,
    NumberArgument,
    TensorArgument,
    ThreadsArgument,
)
from shorthaul.jit.compiling.loading import kept_when_ready, load_when_ready

_MOST_FORGOTTEN = 64  # references to tensors that are gone, beside as many as there are copies


class _Reference(weakref.ref[torch.Tensor]):
    """A reference that is equal to itself alone: others ask their tensors, which compare number by number."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


@dataclass(frozen=True)
class _Copies:
    """The packed copies of one tensor, and what was seen of it when they were made."""

    seen: object
    by_order: dict[object, Any] = field(default_factory=dict)


class PackedWeights:
    """Packed copies by tensor, values and order."""

    def __init__(self) -> None:
        # By the tensor's reference, which takes them out when the tensor goes: by a function that is written in C, as
        # Python code there would lose signals.
        self._copies: dict[_Reference, _Copies] = {}
        self._references: dict[int, _Reference] = {}  # by the tensor's id
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
            reference = self._references.get(key)
            is_known = reference is not None and reference() is weight
            found = self._copies.get(reference) if is_known and reference is not None else None
            if found is None or found.seen != seen:
                found = self._remember(weight, seen)
                if is_known and reference is not None:
                    self._copies.pop(reference, None)
            kept = found.by_order.get(order)
            if kept is not None:
                return kept
        packed = pack()
        # Else somebody wrote while it was packed, and might write the old values again.
        if _look_at_both(weight, scale) == seen:
            with self._lock:
                found.by_order[order] = packed
        return packed

    def _remember(self, weight: torch.Tensor, seen: object) -> _Copies:
        if len(self._references) > 2 * len(self._copies) + _MOST_FORGOTTEN:
            living = self._references.items()
            self._references = {key: each for key, each in living if each() is not None}
        reference, found = _Reference(weight, self._copies.pop), _Copies(seen)
        self._copies[reference] = found
        self._references[id(weight)] = reference
        return found

    def __len__(self) -> int:
        return len(self._copies)


def _look_at_both(weight: torch.Tensor, scale: torch.Tensor | None) -> object:
    seen = look_at(weight)
    if seen is None or scale is None:
        return seen
    of_scale = look_at(scale)
    return None if of_scale is None else (seen, of_scale)


packed_weights = PackedWeights()


def find_packed(
    layout: WeightLayout,
    canonical: tuple[int, ...],
    weight: torch.Tensor,
    scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weights as a kernel reads them, packed once; see `pack`."""
    packed: torch.Tensor = packed_weights.find(
        weight, layout.name, lambda: pack(layout, canonical, weight, scale), scale
    )
    return packed


def pack(
    layout: WeightLayout,
    canonical: tuple[int, ...],
    weight: torch.Tensor,
    scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weights as a kernel reads them; `scale` has one factor per output channel."""
    values = weight.detach()
    if scale is not None:
        factors = scale.to(layout.real).view(-1, *(1,) * (values.dim() - 1))
        values = values.to(layout.real) * factors
    values = layout.prepare(values, canonical)
    return pack_panels(values, layout.view(values), layout.panel, layout.lanes, layout.real)


def find_packed_bias(layout: WeightLayout, bias: torch.Tensor) -> torch.Tensor:
    """The bias as a kernel reads it: packed once, or where it lies."""
    view = layout.bias_view
    if view is None and bias.dtype == layout.real and bias.is_contiguous():
        return bias
    order = ("bias", view, layout.panel, layout.lanes, layout.real)
    packed: torch.Tensor = packed_weights.find(bias, order, lambda: pack_bias(layout, bias))
    return packed


def pack_bias(layout: WeightLayout, bias: torch.Tensor) -> torch.Tensor:
    """The bias as a kernel reads it."""
    values = bias.detach().to(layout.real).contiguous()
    if layout.bias_view is None:
        return values
    return pack_panels(values, layout.bias_view, layout.panel, layout.lanes, layout.real)


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


@kept_when_ready
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
    return load_when_ready(CppSource(f"conv_panels_{c_type}", text, functions), "ATen")


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
