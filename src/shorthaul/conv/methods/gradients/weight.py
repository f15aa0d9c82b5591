"""Writing the kernel for the gradient of the weights: windows times output gradients, by pixels.

The gradient is summed in the packed order of the weights, so that a register tile of it is a few
rows of one panel. Threads own parts of the weights and go over the same blocks of pixels in the
same order. Small weights are summed in a fixed number of stretches of the blocks instead, which are then
added up in order. Either way the threads decide no sum, so results do not depend on how many there are.

How pixels are cut into blocks and stretches decides bits: it never depends on threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from shorthaul.conv.layout.function import number_names, sum_dtype, sum_windows_function
from shorthaul.conv.layout.weights import WeightLayout
from shorthaul.conv.layout.workspace import LINE_BYTES, Workspace, columns_under, even_part
from shorthaul.conv.methods.base import ConvSchedule, KernelPlan, Method, preferred
from shorthaul.conv.methods.depthwise import (
    DEPTHWISE_TILE,
    DepthwiseKernel,
    RowSumNumbers,
    channel_panels,
    emit_depthwise_gradient,
    plan_rows,
)
from shorthaul.conv.methods.text import ADD_STRETCHES, emit_preamble, emit_sizes_and_shape
from shorthaul.conv.methods.window import Window
from shorthaul.conv.methods.window_kernel import (
    WindowKernel,
    emit_panel_widths,
    find_window_kernel,
)
from shorthaul.conv.problem.geometry import Taps, WindowTask
from shorthaul.conv.problem.machine import second_level_cache_bytes, this_machine
from shorthaul.jit import CppSource

# Packed weights of up to so many bytes are summed in so many stretches, however many threads there are:
# threads then share the pixels, where sharing the weights would have each of them pack every pixel.
# Every stretch has weights of its own.
STRETCHES = {64 * 1024: 8, 256 * 1024: 2}
# Pixels per block of the weight gradient: the sums are loaded and stored once for that many FMAs, and the
# windows' lines and the gradients of one panel, of which so many bytes, fit the first-level cache together.
GRADIENT_PIXELS = 144
GRADIENT_BYTES = 24 * 1024
# Depthwise weights are few: their rows are always shared. Each stretch is worth its addition from so many on.
STRETCH_ROWS = 8


WORKSPACE = Workspace(
    window_offsets="int64_t",
    output_offsets="int64_t",
    gradient_offsets="int64_t",
    gradients="real",
    columns="int32_t",
    strips="real",
)


class GradientNumbers(NamedTuple):
    """The kernel's own numbers."""

    thread_bytes: int
    block_rows: int
    block_columns: int
    panel_parts: int
    channel_chunk: int
    stretches: int
    places: tuple[int, ...]


def emit_grad_weight_kernel(kernel: WindowKernel) -> CppSource:
    """The kernel `sum_windows(input, gradient, weights, workspace, ...)`; `weights` are packed."""
    names = number_names(GradientNumbers._fields[:-1], kernel.shape)
    function = sum_windows_function(kernel.dtype)
    preamble = emit_preamble(
        kernel.dtype,
        kernel.machine,
        kernel.channels_last,
        None,
        ("jit/include/parallel", "conv/methods/gradient_block"),
        workspace=WORKSPACE,
    )
    detail = "general" if kernel.shape is None else kernel.shape.describe()
    text = f"""\
// Gradient of the weights of a convolution: {detail}, {str(kernel.dtype).removeprefix("torch.")},
// {"channels last" if kernel.channels_last else "contiguous"}. Register tile: {kernel.rows} window values x {kernel.panel} output channels for {kernel.machine.name}.
// Every sum runs over the blocks of output pixels in order, in stretches or at once, whatever the threads.
{preamble}
constexpr int tile_rows = {kernel.rows}, tile_vectors = {kernel.vectors};
constexpr int64_t panel = tile_vectors * lanes;

{function.prototype()} {{
{emit_sizes_and_shape(names, kernel.shape)}
{_LOOPS.replace("{DISPATCH}", emit_panel_widths(kernel))}{ADD_STRETCHES}}}
"""
    return CppSource(f"conv_grad_weight_{detail}", text, (function,))


_LOOPS = """\
  const int64_t panels = (shape.out_channels + panel - 1) / panel;
  const int64_t chunks = (shape.in_channels + channel_chunk - 1) / channel_chunk;
  const int64_t column_blocks = (out_w + block_columns - 1) / block_columns;
  const int64_t row_blocks = (sizes.rows() + block_rows - 1) / block_rows;
  const int64_t blocks = row_blocks * column_blocks;
  const int64_t parts = shape.groups * chunks * panel_parts, tasks = stretches * parts;
  const int64_t packed_values = shape.groups * panels * shape.window_values() * panel;

  // A task is a part of the weights (some input channels and some panels of one group) over a stretch of blocks.
  on_each_thread(threads < tasks ? threads : tasks, [&](int64_t thread, int64_t team) {
    for (int64_t task = tasks * thread / team; task < tasks * (thread + 1) / team; ++task) {
      const int64_t chunk = task % chunks, part = task / chunks % panel_parts;
      const int64_t group = task / chunks / panel_parts % shape.groups;
      const int64_t stretch = task / parts, first_block = blocks * stretch / stretches;
      const int64_t first = chunk * channel_chunk;
      const int64_t chunk_channels = shape.in_channels - first < channel_chunk ? shape.in_channels - first : channel_chunk;
      GradientBlock<Value, channels_last> block(Workspace(workspace + thread * thread_bytes, places), block_rows, block_columns,
                                                group * shape.in_channels + first, chunk_channels, shape);

      // Blocks of output pixels, in order: their windows are packed once for all panels.
      for (int64_t where = first_block; where < blocks * (stretch + 1) / stretches; ++where) {
        block.pack_windows(input, where / column_blocks, where % column_blocks, shape, sizes);

        // Panels of output channels: their gradients stay in the first-level cache.
        for (int64_t each = panels * part / panel_parts; each < panels * (part + 1) / panel_parts; ++each) {
          const int64_t channel = each * panel;
          const int64_t channels = shape.out_channels - channel < panel ? shape.out_channels - channel : panel;
          const auto run_panel = [&](auto vectors_here) {
            constexpr int vectors = vectors_here;
            const int64_t tiles = chunk_channels * shape.window_rows() * shape.kernel_w / tile_rows;
            block.pack_gradients(gradient, group * shape.out_channels + channel, channels, vectors * lanes, sizes.out_plane(), tiles);
            real* of_panel = weights + stretch * packed_values + (group * panels + each) * shape.window_values() * panel;

            // Columns of the window, all its rows at once; the sums of a chunk of channels lie together.
            const int64_t run_values = chunk_channels * shape.window_rows();
            for (int64_t column = 0; column < shape.kernel_w; ++column) {
              const int64_t windows = column * shape.dilation_w * block.pitch;
              const int64_t at = first * shape.window_rows() * shape.kernel_w + column * run_values;

              // Tiles of window values: their sums stay in registers for all pixels of the block.
              balanced_tiles(run_values, tile_rows, [&](int64_t value, int64_t size) {
                with_constant<tile_rows>(size, [&](auto rows) {
                  real* sums = of_panel + (at + value) * (vectors * lanes);
                  if (where == first_block) {
                    block.template run_tile<rows, vectors, true>(sums, windows + value);
                  } else {
                    block.template run_tile<rows, vectors, false>(sums, windows + value);
                  }
                });
              });
            }
          };
          {DISPATCH}
        }
      }
    }
  });

"""


def plan_gradient(task: WindowTask, schedule: ConvSchedule, threads: int) -> GradientNumbers:
    """Cut the weights into parts for threads, and the pixels into blocks.

    Threads that share a stretch have whole panels each, or else channels: either way a thread's sums lie in
    one piece. Those of others in between would be fetched ahead, again and again, from the thread that has
    them (conv9 on two distant cores: 4.5 ms with channels of both in turn, 3.9 in one piece).
    """
    value_bytes = task.sum_bytes
    panel = schedule.vectors * this_machine().lanes(value_bytes)
    rows, columns = task.batch * task.out_sizes[0] * task.out_sizes[1], task.out_sizes[2]
    wanted = min(GRADIENT_PIXELS, GRADIENT_BYTES // (panel * value_bytes))
    block_columns = even_part(columns, 2 * wanted)
    block_rows = max(1, min(rows, round(wanted / block_columns)))
    if rows * columns <= 2 * wanted:
        # Few pixels are one block: the weights, which are the larger part then, are gone over once.
        block_rows = rows
    window_rows = task.shape.kernel[0] * task.shape.kernel[1]
    channel_bytes = block_rows * columns_under(task, block_columns) * window_rows * value_bytes
    channels = task.shape.in_channels
    budget = schedule.strip_bytes or second_level_cache_bytes() // 2
    chunk = min(channels, max(8, budget // channel_bytes // 8 * 8))
    panels = -(-task.shape.out_channels // panel)
    window_values = channels * math.prod(task.shape.kernel)
    packed_bytes = task.shape.groups * window_values * panels * panel * value_bytes
    blocks = -(-rows // block_rows) * -(-columns // block_columns)
    fitting = (count for size, count in STRETCHES.items() if packed_bytes <= size)
    stretches = next((count for count in fitting if blocks >= 4 * count), 1)
    parts, sharing = 1, -(-threads // stretches)
    if sharing > 1 and panels % sharing == 0:
        parts = sharing
    elif sharing > 1:
        chunk = min(chunk, max(min(channels, 8), even_part(channels, -(-channels // sharing))))
        pieces = -(-channels // chunk) * task.shape.groups
        parts = min(panels, sharing) if pieces % sharing and pieces < 4 * sharing else 1
    line = 64 // value_bytes
    pitch = (-(-window_rows * chunk // line) | 1) * line
    pixels = block_rows * block_columns
    capacity = pixels + this_machine().lanes(value_bytes)
    carved = WORKSPACE.carve(
        value_bytes,
        slack_bytes=LINE_BYTES,
        window_offsets=capacity,
        output_offsets=capacity,
        gradient_offsets=capacity,
        gradients=capacity * panel,
        columns=columns_under(task, block_columns),
        strips=block_rows * columns_under(task, block_columns) * pitch,
    )
    return GradientNumbers(
        carved.thread_bytes,
        block_rows,
        block_columns,
        parts,
        chunk,
        stretches,
        carved.places,
    )


def plan_depthwise_gradient(task: WindowTask, threads: int) -> tuple[int, int]:
    """Parts of the channels, for threads, and stretches of the rows, however many threads there are."""
    rows = task.batch * task.out_sizes[0] * task.out_sizes[1]
    stretches = max(1, min(max(STRETCHES.values()), rows // STRETCH_ROWS))
    _, vectors = DEPTHWISE_TILE
    blocks = -(-task.shape.groups // (vectors * this_machine().lanes(task.sum_bytes)))
    return min(blocks, -(-threads // stretches)), stretches


class DepthwiseGradient(Method):
    """Vectors of channels: sums of other kernels would use one lane of a vector."""

    name = "depthwise gradient"
    function = "sum_windows"
    emit = staticmethod(emit_depthwise_gradient)

    def applies(self, task: WindowTask) -> bool:
        """Every group has one channel in and one out."""
        shape = task.shape
        return shape.in_channels == shape.out_channels == 1 and shape.groups > 1

    def schedule(self, task: WindowTask) -> ConvSchedule:
        """One tile, one kernel for every shape."""
        return ConvSchedule(self.name, *DEPTHWISE_TILE, is_specialized=False, strip_bytes=0)

    def plan(
        self, task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
    ) -> KernelPlan:
        """Over channels-last images: a copy of others costs less than sums that use one lane."""
        task = replace(task, channels_last=True)
        kernel = DepthwiseKernel(task.dtype, None, this_machine(), schedule.rows, schedule.vectors)
        parts, stretches = plan_depthwise_gradient(task, threads)
        carved = plan_rows(task)
        numbers = RowSumNumbers(carved.thread_bytes, parts, stretches, carved.places)
        weights = channel_panels(task, taps)
        return KernelPlan(task, kernel, numbers, weights, None, stretches, adds_up=True)


class WindowGradient(Method):
    """Packed windows times output gradients, in the order of the weights' panels."""

    name = "window gradient"
    function = "sum_windows"
    emit = staticmethod(emit_grad_weight_kernel)

    def __init__(self, forward_methods: Sequence[Method]) -> None:
        self.forward_methods = forward_methods

    def schedule(self, task: WindowTask) -> ConvSchedule:
        """The tile of the window kernel where that is preferred: those of other methods would be wrong here.

        The planar kernel's twelve vectors for one output channel would be eleven vectors of nothing.
        """
        forward = preferred(self.forward_methods, task)
        if isinstance(forward, Window):
            return replace(forward.schedule(task), method=self.name)
        rows, vectors = this_machine().tiles()[0]
        strip_bytes = second_level_cache_bytes() * 3 // 8
        return ConvSchedule(self.name, rows, vectors, is_specialized=False, strip_bytes=strip_bytes)

    def plan(
        self, task: WindowTask, taps: Taps | None, schedule: ConvSchedule, threads: int
    ) -> KernelPlan:
        """Sums lie in panels, of which a thread has as many channels as lie in one piece."""
        kernel = find_window_kernel(task, schedule)
        if kernel.shape is not None:  # its tiles know of no shape
            kernel = replace(kernel, shape=kernel.shape.without_channels())
        numbers = plan_gradient(task, schedule, threads)
        real, chunk = sum_dtype(task.dtype), numbers.channel_chunk
        weights = WeightLayout(task.shape, real, kernel.panel, kernel.lanes, taps, chunk)
        return KernelPlan(task, kernel, numbers, weights, kernel.shape, numbers.stretches)
