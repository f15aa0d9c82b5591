"""Writing the sliding kernel: depthwise convolutions whose windows overlap from row to row.

A register tile is a few output rows high and one vector of channels or of neighbours deep: each image row under it is
loaded once per kernel column and serves every output that it touches. The kernel's height
and vertical stride are constants of the text; channels, widths and sizes are not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shorthaul.conv.emit_function import (
    convolve_function,
    emit_sizes_and_shape,
    number_names,
)
from shorthaul.conv.emit_window import emit_preamble
from shorthaul.conv.machine import VectorMachine
from shorthaul.jit import CppSource


@dataclass(frozen=True)
class SlidingKernel:
    """Everything that decides the text of a sliding kernel."""

    dtype: torch.dtype
    channels_last: bool
    activation: str | None
    machine: VectorMachine
    rows: int  # of the register tile: output rows
    pixels: (
        int  # of the register tile: neighbouring outputs, or vectors of them in contiguous images
    )
    kernel_h: int
    stride_h: int


def emit_sliding_kernel(kernel: SlidingKernel) -> CppSource:
    """The kernel `convolve(input, weights, bias, residual, output, workspace, numbers)`."""
    names = number_names(("thread_bytes", "block_rows"), None)
    function = convolve_function(kernel.dtype, names)
    preamble = emit_preamble(
        kernel.dtype,
        kernel.machine,
        kernel.channels_last,
        kernel.activation,
        ("jit/include/parallel", "conv/methods/sliding_tile"),
    )
    dtype = str(kernel.dtype).removeprefix("torch.")
    layout = "channels_last" if kernel.channels_last else "contiguous"
    vectors = "channels" if kernel.channels_last else "neighbouring outputs"
    text = f"""\
// Depthwise convolution, {kernel.kernel_h} rows high, every {kernel.stride_h}. row: {dtype}, {layout}.
// Register tile: {kernel.rows} output rows x {kernel.pixels} vectors of {vectors} for {kernel.machine.name}.
// Every sum runs over (kernel column, kernel row) in this order, whatever the threads.
{preamble}
constexpr int tile_rows = {kernel.rows}, tile_pixels = {kernel.pixels}, kernel_rows = {kernel.kernel_h}, row_stride = {kernel.stride_h};

{function.prototype()} {{
{emit_sizes_and_shape(names, None)}
{_PIXEL_LOOPS if kernel.channels_last else _PLANE_LOOPS}}}
"""
    name = f"conv_sliding_{kernel.kernel_h}s{kernel.stride_h}_{dtype}_{layout}"
    return CppSource(name, text, (function,))


_PIXEL_LOOPS = """\
  using Windows = SlidingPixels<Value, Activation, tile_pixels, kernel_rows, row_stride>;
  // Threads own output rows.
  on_each_thread(threads < sizes.rows() ? threads : sizes.rows(), [&](int64_t thread, int64_t team) {
    Windows windows(workspace + thread * thread_bytes, shape, sizes);
    const int64_t end = sizes.rows() * (thread + 1) / team;
    for (int64_t row = sizes.rows() * thread / team; row < end;) {
      const int64_t plane = row / out_h, first = row % out_h;
      const int64_t count = out_h - first < end - row ? out_h - first : end - row;
      // Tiles of rows; each goes over the row's outputs, and for each over the vectors of channels.
      balanced_tiles(count, tile_rows, [&](int64_t begin, int64_t size) {
        with_constant<tile_rows>(size, [&](auto rows) {
          windows.template run<rows>(input, weights, bias, residual, output, plane / out_d, plane % out_d, first + begin);
        });
      });
      row += count;
    }
  });
"""

_PLANE_LOOPS = """\
  using Windows = SlidingPlane<Value, Activation, tile_pixels, kernel_rows, row_stride>;
  const int64_t row_blocks = (out_h + block_rows - 1) / block_rows;
  const int64_t tasks = batch * shape.groups * out_d * row_blocks;
  // A task is a block of output rows of one channel of one image.
  on_each_thread(threads < tasks ? threads : tasks, [&](int64_t thread, int64_t team) {
    Windows windows(workspace + thread * thread_bytes, rows_under(int(block_rows), kernel_rows, row_stride), shape, sizes);
    for (int64_t task = tasks * thread / team; task < tasks * (thread + 1) / team; ++task) {
      const Span rows = even_part(out_h, block_rows, task % row_blocks);
      const int64_t first = rows.begin, count = rows.end - rows.begin, depth = task / row_blocks % out_d;
      const int64_t plane = task / row_blocks / out_d, channel = plane % shape.groups;
      const int64_t source_depth = source_index(depth * shape.stride_d - padding_d, in_d, padding_mode);
      windows.pack(input + plane * sizes.in_plane() + source_depth * in_h * in_w, first, count, source_depth < 0);

      // Tiles of rows; each goes over the vectors of its rows.
      balanced_tiles(count, tile_rows, [&](int64_t begin, int64_t size) {
        with_constant<tile_rows>(size, [&](auto rows) {
          windows.template run_row<rows>(
              windows.band + begin * row_stride * windows.phases * windows.pitch,
              weights + channel * kernel_rows * shape.kernel_w, bias == nullptr ? 0 : bias[channel], residual, output,
              plane * sizes.out_plane() + (depth * full_h + first + begin) * full_w);
        });
      });
    }
  });
"""
