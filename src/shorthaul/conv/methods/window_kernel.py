"""Writing the window kernel: windows that overlap in memory, times panels of weights.

Windows are packed into strips, or read from rows that are packed once or from the image itself. The
text is the loop nest; what each loop does to one block, tile or vector is in
the headers beside it. A specialized kernel has its shape as constants, a general one reads it from
its arguments: nothing else differs, so both give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from shorthaul.conv.layout.function import convolve_function, number_names, sum_dtype
from shorthaul.conv.layout.workspace import Workspace
from shorthaul.conv.methods.base import ConvSchedule
from shorthaul.conv.methods.text import (
    emit_dispatch,
    emit_preamble,
    emit_sizes_and_shape,
    find_widths,
)
from shorthaul.conv.problem.geometry import KernelShape, WindowTask
from shorthaul.conv.problem.machine import VectorMachine, this_machine
from shorthaul.jit import CppSource

HOW = {
    "strips": "packed into strips",
    "rows": "read from packed rows",
    "in_place": "read where they lie",
}

# The order of a sum, by `joins_columns`.
ORDERS = {
    False: "(kernel column, kernel row, channel)",
    True: "(kernel row, kernel column, channel)",
}

# Weights of longer runs would not stay in the second-level cache beside the windows: 16 channels of
# 4,608 values are 288 KiB. Such runs are cut, so their length is not compiled in.
LONGEST_RUN = 4608


# Windows of a tile that each have a pointer: x86 has sixteen registers for addresses, not all to spare.
MOST_POINTERS = 9
# Below so many values, moving the pointers from run to run costs more than tiles that end with their
# output row: a move takes about ten cycles, beside six per value.
SHORT_RUN = 32
# Of so many values, a multiple is four steps or some more, also in pairs: their loop has one end and no rest.
EVEN_RUN = 8


def find_run_order(shape: KernelShape, windows: str, *, joins_columns: bool) -> str:
    """What of a window is one run, which with pairs decides the order of the weights.

    =======  ==============================================================================
    windows  all of it, by kernel column, row and channel
    columns  a column of it, where dilation leaves others in between
    rows     a row of it, by kernel column and channel: neighbors in the image
    taps     the channels of one pixel
    =======  ==============================================================================
    """
    is_one_row = shape.window_rows == 1 and (windows != "in_place" or shape.groups == 1)
    if windows == "strips" or is_one_row:
        return "columns" if shape.dilation[2] > 1 else "windows"
    return "rows" if joins_columns else "taps"


def has_even_steps(windows: str, rows: int, run_length: int) -> bool:
    """Whether tiles of `rows` windows rely on even steps from one to the next, not on a pointer to each."""
    return rows > MOST_POINTERS or (windows != "strips" and 0 < run_length < SHORT_RUN)


WORKSPACE = Workspace(
    window_offsets="int64_t",
    output_offsets="int64_t",
    stage="real",
    columns="int32_t",
    window_runs="Run",
    class_runs="Run",
    places_of_pixels="int64_t",
    sorted_rows="int64_t",
    row_places="int64_t",
    row_stretches="Stretch",
    column_stretches="Stretch",
    packed="factor",
)


class WindowNumbers(NamedTuple):
    """The kernel's own numbers."""

    thread_bytes: int
    block_rows: int
    block_columns: int
    panel_parts: int
    depth_chunk: int
    skips_padding: int
    places: tuple[int, ...]


@dataclass(frozen=True)
class WindowKernel:
    """Everything that decides the text of a window kernel."""

    dtype: torch.dtype
    channels_last: bool
    activation: str | None
    machine: VectorMachine
    rows: int  # of the register tile: windows
    vectors: int  # of the register tile: vectors of output channels
    shape: KernelShape | None = None  # None: read from the arguments; or its taps alone
    widths: tuple[int, ...] = ()  # of the panels that occur, in vectors; (): any
    has_even_runs: bool = False  # where their length is not known: whether it is a multiple of `EVEN_RUN`, and never cut
    windows: str = "strips"  # where windows are read: see `WindowTask.windows`
    has_prefetch: bool = True  # of the lines that are written
    has_pairs: bool = False  # whether bfloat16 values stay 16 bits, and are multiplied two by two
    joins_columns: bool = False  # whether a run is a whole row of a window: see `find_run_order`
    has_padding: bool = False  # whether windows that are read in place reach into padding

    @property
    def lanes(self) -> int:
        """Values in one vector."""
        return self.machine.lanes(sum_dtype(self.dtype).itemsize)

    @property
    def panel(self) -> int:
        """Output channels of one panel of packed weights."""
        return self.lanes * self.vectors

    @property
    def run_length(self) -> int:
        """Values of a window that follow one another, if known and short enough to be one chunk; else 0."""
        if self.shape is None or not self.shape.has_channels:
            return 0
        values = self.shape.in_channels
        order = find_run_order(self.shape, self.windows, joins_columns=self.joins_columns)
        if order in ("windows", "columns"):
            values *= self.shape.window_rows
        if order in ("windows", "rows"):
            values *= self.shape.kernel[2]
        return values if values <= LONGEST_RUN else 0

    @property
    def can_skip(self) -> bool:
        """Whether taps in zero padding can be left out: runs are taps, and tiles have a pointer to each window."""
        if self.windows == "in_place":
            return self.has_padding
        return self.windows == "rows" and self.window_step == 0 and not self.joins_columns

    @property
    def window_step(self) -> int:
        """Values from window to window, where tiles rely on it instead of a pointer to each window; else 0."""
        shape = self.shape
        if shape is None or not shape.has_channels:
            return 0
        if not has_even_steps(self.windows, self.rows, self.run_length):
            return 0
        if self.windows == "in_place":
            return shape.stride[2] * shape.in_channels * shape.groups
        pixels = shape.window_rows if self.windows == "strips" else 1
        return shape.column_step * pixels * shape.in_channels

    def for_every_width(self) -> WindowKernel:
        """The kernel with the same tiles and taps for any number of channels, where they would be all but a loop's end.

        The layers of a network differ in their channels more than in anything else, so that few kernels are
        compiled. Short runs, and tiles that rely on even steps, have theirs as constants.
        """
        is_long = self.run_length >= SHORT_RUN and self.run_length % EVEN_RUN == 0
        if self.shape is None or self.window_step or not is_long:
            return self
        return replace(self, shape=self.shape.without_channels(), has_even_runs=True)


def find_window_kernel(task: WindowTask, schedule: ConvSchedule) -> WindowKernel:
    """The kernel of a task with the tile of a schedule; where its windows are is said by the caller."""
    machine, shape = this_machine(), task.shape if schedule.is_specialized else None
    lanes = machine.lanes(task.sum_bytes)
    return WindowKernel(
        task.dtype,
        task.channels_last,
        task.activation,
        machine,
        schedule.rows,
        schedule.vectors,
        shape,
        () if shape is None else find_widths(shape.out_channels, lanes, schedule.vectors),
    )


def emit_window_kernel(kernel: WindowKernel) -> CppSource:
    """The kernel `convolve(input, weights, bias, residual, output, workspace, ...)`."""
    names = number_names(WindowNumbers._fields[:-1], kernel.shape)
    function = convolve_function(kernel.dtype)
    preamble = emit_preamble(
        kernel.dtype,
        kernel.machine,
        kernel.channels_last,
        kernel.activation,
        ("jit/include/parallel", "conv/methods/output", "conv/methods/window_block"),
        has_pairs=kernel.has_pairs,
        workspace=WORKSPACE,
    )
    packed = "Halves" if kernel.has_pairs else "Widened<Value>"
    joins_columns = str(kernel.joins_columns).lower()
    can_skip = str(kernel.can_skip).lower()
    run_length = "even_runs" if kernel.has_even_runs else kernel.run_length
    detail = "general" if kernel.shape is None else kernel.shape.describe()
    text = f"""\
// Convolution by windows {HOW[kernel.windows]}: {detail}, {str(kernel.dtype).removeprefix("torch.")},
// {"channels last" if kernel.channels_last else "contiguous"}. Register tile: {kernel.rows} windows x {kernel.panel} output channels for {kernel.machine.name}.
// Every sum runs over {ORDERS[kernel.joins_columns]} in this order, whatever the threads.
{preamble}
constexpr int tile_rows = {kernel.rows}, tile_vectors = {kernel.vectors};
constexpr int64_t panel = tile_vectors * lanes;
constexpr bool has_prefetch = {str(kernel.has_prefetch).lower()};
using Block = WindowBlock<Value, {packed}, channels_last, Windows::{kernel.windows}, {joins_columns}, {run_length}, {kernel.window_step}, {can_skip}, has_prefetch>;

{function.prototype()} {{
{emit_sizes_and_shape(names, kernel.shape)}
{_LOOPS.replace("{DISPATCH}", emit_panel_widths(kernel))}}}
"""
    pairs = "_pairs" if kernel.has_pairs else ""
    return CppSource(f"conv_window_{detail}{pairs}", text, (function,))


def emit_panel_widths(kernel: WindowKernel) -> str:
    """Run a panel at its width: only widths that occur are compiled."""
    widths = kernel.widths or range(1, kernel.vectors + 1)
    return emit_dispatch("channels", widths, "run_panel", unit=" * lanes", indent=8)


_LOOPS = """\
  const int64_t panels = (shape.out_channels + panel - 1) / panel;
  const int64_t column_blocks = (out_w + block_columns - 1) / block_columns;
  const int64_t row_blocks = (sizes.rows() + block_rows - 1) / block_rows;
  const int64_t parts = shape.groups * panel_parts;
  const int64_t tasks = row_blocks * column_blocks * parts;
  const bool is_plain = residual == nullptr && is_short<Activation>;

  // A task is a block of output pixels and a part of one group's output channels.
  on_each_thread(threads < tasks ? threads : tasks, [&](int64_t thread, int64_t team) {
    Block block(Workspace(workspace + thread * thread_bytes, places), block_rows, block_columns, skips_padding != 0, shape, sizes);
    int64_t packed = -1;
    for (int64_t task = tasks * thread / team; task < tasks * (thread + 1) / team; ++task) {
      const int64_t part = task % panel_parts, group = task / panel_parts % shape.groups;
      if (task / panel_parts != packed) {
        packed = task / panel_parts;
        const int64_t where = task / parts;
        block.pack(input, where / column_blocks, where % column_blocks, group, shape, sizes);
      }

      // Panels of output channels: the weights of one panel stay in cache for all pixels.
      for (int64_t each = panels * part / panel_parts; each < panels * (part + 1) / panel_parts; ++each) {
        const int64_t channel = each * panel;
        const int64_t channels = shape.out_channels - channel < panel ? shape.out_channels - channel : panel;
        const int64_t first_channel = group * shape.out_channels + channel;
        const Target<Value::value> target{output, residual, first_channel, channels, is_plain};
        const auto run_panel = [&](auto vectors_here) {
          constexpr int vectors = vectors_here;
          const real* of_panel = weights + (group * panels + each) * block.window_steps * panel;
          const real* of_bias = bias == nullptr ? nullptr : bias + (group * panels + each) * panel;

          // Groups of pixels: contiguous outputs leave while they are in the first-level cache.
          block.template for_each_group<panel>(depth_chunk, [&](int64_t first, int64_t count) {
            if (!channels_last && has_prefetch) block.prefetch_planes(first, count, target, sizes.out_plane());

            // Chunks of the window: what one chunk reads of a panel stays in the second-level cache.
            block.for_each_chunk(depth_chunk, [&](const Chunk& chunk) {
              // Classes of pixels: taps that meet nothing but zeros of padding are left out.
              block.for_each_class(first, count, chunk, [&](int64_t begin, int64_t alike, const Runs& runs) {
                // Tiles of windows: sums stay in registers for the whole chunk.
                block.for_each_tile(begin, alike, tile_rows, [&](int64_t pixel, int64_t size) {
                  with_constant<tile_rows>(size, [&](auto rows) {
                    block.template run_tile<rows, vectors, Activation>(pixel, first, chunk, runs, of_panel, of_bias, target);
                  });
                });
              });
            });
            if (!channels_last) {
              store_planes<Value, Activation>(
                  output + first_channel * sizes.out_plane(),
                  residual == nullptr ? nullptr : residual + first_channel * sizes.out_plane(),
                  [&](int64_t pixel) { return block.sums_of(pixel, vectors * lanes); },
                  block.output_offsets + first, count, channels, sizes.out_plane(), sizes.step_w);
            }
          });
        };
        {DISPATCH}
      }
    }
  });
"""
