"""Writing the depthwise kernel for channels-last images: vectors of channels, nothing packed.

Its loops need no constants of the shape, so one kernel serves every shape.

"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from shorthaul.conv.layout.function import (
    convolve_function,
    number_names,
    sum_dtype,
    sum_windows_function,
)
from shorthaul.conv.layout.weights import ChannelPanels
from shorthaul.conv.layout.workspace import Carved, Workspace
from shorthaul.conv.methods.base import ConvSchedule, KernelPlan, Method
from shorthaul.conv.methods.text import ADD_STRETCHES, emit_preamble, emit_sizes_and_shape
from shorthaul.conv.problem.geometry import Taps, WindowTask
from shorthaul.conv.problem.machine import VectorMachine, this_machine
from shorthaul.jit import CppSource

# Outputs and vectors of channels of the depthwise kernel's register tile.
DEPTHWISE_TILE = (6, 2)


WORKSPACE = Workspace(rows="const value*", columns="int32_t")


class RowNumbers(NamedTuple):
    """The numbers of the depthwise kernel."""

    thread_bytes: int
    places: tuple[int, ...]


class RowSumNumbers(NamedTuple):
    """The numbers of the gradient of its weights."""

    thread_bytes: int
    channel_parts: int
    stretches: int
    places: tuple[int, ...]


@dataclass(frozen=True)
class DepthwiseKernel:
    """Everything that decides the text of a depthwise kernel."""

    dtype: torch.dtype
    activation: str | None
    machine: VectorMachine
    rows: int  # of the register tile: neighboring outputs
    vectors: int  # of the register tile: vectors of channels


def emit_depthwise_kernel(kernel: DepthwiseKernel) -> CppSource:
    """The kernel `convolve(input, weights, bias, residual, output, workspace, ...)`."""
    names = number_names(RowNumbers._fields[:-1], None)
    function = convolve_function(kernel.dtype)
    preamble = emit_preamble(
        kernel.dtype,
        kernel.machine,
        True,
        kernel.activation,
        ("jit/include/parallel", "conv/methods/depthwise_row"),
        workspace=WORKSPACE,
    )
    dtype = str(kernel.dtype).removeprefix("torch.")
    text = f"""\
// Depthwise convolution of channels-last images: any shape, {dtype}.
// Register tile: {kernel.rows} outputs x {kernel.vectors} vectors of channels for {kernel.machine.name}.
// Every sum runs over (kernel column, kernel row) in this order, whatever the threads.
{preamble}
constexpr int tile_pixels = {kernel.rows}, tile_vectors = {kernel.vectors};

{function.prototype()} {{
{emit_sizes_and_shape(names, None)}
{_LOOPS}}}
"""
    return CppSource(f"conv_depthwise_{dtype}", text, (function,))


def emit_depthwise_gradient(kernel: DepthwiseKernel) -> CppSource:
    """The kernel `sum_windows(input, gradient, weights, workspace, ...)`; `weights` are packed."""
    names = number_names(RowSumNumbers._fields[:-1], None)
    function = sum_windows_function(kernel.dtype)
    preamble = emit_preamble(
        kernel.dtype,
        kernel.machine,
        True,
        None,
        ("jit/include/parallel", "conv/methods/depthwise_row"),
        workspace=WORKSPACE,
    )
    dtype = str(kernel.dtype).removeprefix("torch.")
    text = f"""\
// Gradient of the weights of a depthwise convolution of channels-last images: any shape, {dtype}.
// Register tile: {kernel.rows} taps x {kernel.vectors} vectors of channels for {kernel.machine.name}.
// Every sum runs over the output rows in order, in stretches or at once, whatever the threads.
{preamble}
constexpr int tile_taps = {kernel.rows}, tile_vectors = {kernel.vectors};

{function.prototype()} {{
{emit_sizes_and_shape(names, None)}
{_GRADIENT_LOOPS}}}
"""
    return CppSource(f"conv_depthwise_gradient_{dtype}", text, (function,))


_GRADIENT_LOOPS = f"""\
  const int64_t block = tile_vectors * lanes;
  const int64_t blocks = (shape.groups + block - 1) / block, tasks = stretches * channel_parts;
  const int64_t packed_values = shape.window_values() * ((shape.groups + lanes - 1) / lanes * lanes);

  // A task is a stretch of the output rows, for some channels.
  on_each_thread(threads < tasks ? threads : tasks, [&](int64_t thread, int64_t team) {{
    DepthwiseRow<Value> windows(Workspace(workspace + thread * thread_bytes, places), shape, sizes);
    for (int64_t task = tasks * thread / team; task < tasks * (thread + 1) / team; ++task) {{
      const int64_t part = task % channel_parts, stretch = task / channel_parts;
      const int64_t begin = blocks * part / channel_parts * block, stop = blocks * (part + 1) / channel_parts * block;
      const int64_t end = stop < shape.groups ? stop : shape.groups;
      for (int64_t each = sizes.rows() * stretch / stretches; each < sizes.rows() * (stretch + 1) / stretches; ++each) {{
        const OutputRow row(each, sizes);
        windows.find_rows(input, row);
        const Value::value* of_row = gradient + (row.image * sizes.out_plane() + row.position(0, sizes)) * windows.channels;

        // Rows of the window; those in padding of zeros add nothing.
        for (int64_t window_row = 0; window_row < shape.window_rows(); ++window_row) {{
          const Value::value* line = windows.rows[window_row];
          if (line == nullptr) continue;
          real* of_window_row = weights + stretch * packed_values + window_row * windows.padded_channels;

          // Vectors of channels, then tiles of neighboring taps.
          for (int64_t channel = begin; channel < end;) {{
            const int64_t left = shape.groups - channel;
            const auto run = [&](auto vectors, auto is_partial) {{
              balanced_tiles(shape.kernel_w, tile_taps, [&](int64_t tap, int64_t size) {{
                with_constant<tile_taps>(size, [&](auto taps) {{
                  const int64_t step = shape.window_rows() * windows.padded_channels;
                  windows.template sum_taps<taps, vectors, is_partial>(
                      of_window_row + tap * step + channel, step, of_row + channel, line, tap, channel);
                }});
              }});
              channel += vectors * lanes;
            }};
            constexpr std::integral_constant<int, tile_vectors> full;
            constexpr std::integral_constant<int, 1> single;
            if (left >= full * lanes) run(full, std::false_type{{}});
            else if (left >= lanes) run(single, std::false_type{{}});
            else run(single, std::true_type{{}});
          }}
        }}
      }}
    }}
  }});

{ADD_STRETCHES}"""

_LOOPS = """\
  const bool is_plain = residual == nullptr && std::is_same_v<Activation, NoActivation>;
  // Threads own output rows.
  on_each_thread(threads < sizes.rows() ? threads : sizes.rows(), [&](int64_t thread, int64_t team) {
    DepthwiseRow<Value> windows(Workspace(workspace + thread * thread_bytes, places), shape, sizes);
    for (int64_t each = sizes.rows() * thread / team; each < sizes.rows() * (thread + 1) / team; ++each) {
      const OutputRow row(each, sizes);
      windows.find_rows(input, row);

      // Tiles of neighboring outputs; those at the edges look each column up.
      balanced_tiles(out_w, tile_pixels, [&](int64_t column, int64_t size) {
        const int64_t at = (row.image * sizes.out_plane() + row.position(column, sizes)) * windows.channels;
        const bool is_inner = windows.is_inner(column, size);
        with_constant<tile_pixels>(size, [&](auto pixels) {
          // Vectors of channels; the last one may be in part.
          for (int64_t channel = 0; channel < windows.channels;) {
            const int64_t left = windows.channels - channel;
            real stage[tile_pixels * tile_vectors * lanes];
            const auto run = [&](auto vectors, auto reading) {
              // Sums that need no more than storing go straight to the output.
              if constexpr (Value::is_real && reading != Reading::partial) {
                if (is_plain) {
                  windows.template run_tile<pixels, vectors, reading>(output + at + channel, step_w * windows.channels, column, channel, weights, bias);
                  channel += vectors * lanes;
                  return;
                }
              }
              windows.template run_tile<pixels, vectors, reading>(stage, vectors * lanes, column, channel, weights, bias);
              windows.template finish_tile<Activation>(output, residual, at, stage, pixels, vectors, channel);
              channel += vectors * lanes;
            };
            constexpr std::integral_constant<int, tile_vectors> full;
            constexpr std::integral_constant<int, 1> single;
            constexpr std::integral_constant<Reading, Reading::inner> inner;
            constexpr std::integral_constant<Reading, Reading::edge> edge;
            constexpr std::integral_constant<Reading, Reading::partial> partial;
            if (left >= full * lanes) {
              if (is_inner) run(full, inner); else run(full, edge);
            } else if (left >= lanes) {
              if (is_inner) run(single, inner); else run(single, edge);
            } else {
              run(single, partial);
            }
          }
        });
      });
    }
  });
"""


def plan_rows(task: WindowTask) -> Carved:
    """One thread's workspace for the depthwise kernel: row pointers and a column map."""
    window_rows = task.shape.kernel[0] * task.shape.kernel[1]
    columns = (task.out_sizes[2] - 1) * task.shape.stride[2]
    columns += (task.shape.kernel[2] - 1) * task.shape.dilation[2] + 1
    return WORKSPACE.carve(task.sum_bytes, rows=window_rows, columns=columns)


def is_channelwise(task: WindowTask) -> bool:
    """Whether vectors of channels work without packing: depthwise, channels last, inner windows."""
    shape = task.shape
    edge_outputs = (shape.kernel[2] - 1) * shape.dilation[2] / shape.stride[2]
    return (
        task.channels_last
        and shape.in_channels == shape.out_channels == 1
        and shape.groups >= this_machine().lanes(task.sum_bytes)
        and edge_outputs < 0.4 * task.out_sizes[2]
    )


class Depthwise(Method):
    """Vectors of channels, read where they lie."""

    name = "depthwise"
    emit = staticmethod(emit_depthwise_kernel)
    applies = staticmethod(is_channelwise)

    def schedule(self, task: WindowTask) -> ConvSchedule:
        """One tile, one kernel for every shape."""
        return ConvSchedule(self.name, *DEPTHWISE_TILE, is_specialized=False, strip_bytes=0)

    def plan(
        self, task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
    ) -> KernelPlan:
        """One panel of all channels, in one group: weights are [tap][channel]."""
        kernel = DepthwiseKernel(
            task.dtype, task.activation, this_machine(), schedule.rows, schedule.vectors
        )
        weights = channel_panels(task, taps)
        return KernelPlan(task, kernel, RowNumbers(*plan_rows(task)), weights, None)


def channel_panels(task: WindowTask, taps: Taps | None) -> ChannelPanels:
    """All channels of depthwise weights in one panel, padded to whole vectors."""
    lanes = this_machine().lanes(task.sum_bytes)
    channels = -(-task.shape.groups // lanes) * lanes
    return ChannelPanels(task.shape, sum_dtype(task.dtype), channels, lanes, taps)
