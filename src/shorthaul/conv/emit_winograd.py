"""Writing the row-wise Winograd kernel: fewer products for windows three columns wide.

F(4, 3) makes four neighbouring outputs of one kernel row from six products instead of twelve, F(2, 3)
two from four instead of six. Sums are taken of transformed values, so the rounding error is larger:
only `exact=False` allows it. Weights are transformed once, in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shorthaul.conv.emit_function import (
    convolve_function,
    emit_sizes_and_shape,
    number_names,
)
from shorthaul.conv.emit_window import WindowKernel, emit_panel_widths, emit_preamble
from shorthaul.jit import CppSource

# Rows are points of interpolation: what the three weights of a kernel row become at each.
_POINTS = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
}


@dataclass(frozen=True)
class WinogradKernel:
    """Everything that decides the text of a Winograd kernel."""

    window: WindowKernel  # dtype, layout, activation, machine, register tile and shape
    outputs: int  # of one tile: 4 or 2


def transform_weights(weight: Tensor, outputs: int) -> Tensor:
    """Weights (..., 3) as `outputs` + 2 points (..., outputs + 2), rounded once.

    >>> transform_weights(torch.tensor([2.0, 4.0, 6.0]), 2)
    tensor([2., 6., 2., 6.])
    """
    points = torch.tensor(_POINTS[outputs], dtype=torch.float64, device="cpu")
    return (weight.double() @ points.T).to(weight.dtype)


def emit_winograd_kernel(kernel: WinogradKernel) -> CppSource:
    """The kernel `convolve(input, weights, bias, residual, output, workspace, numbers)`."""
    window = kernel.window
    own = ("thread_bytes", "block_rows", "block_tiles", "panel_parts", "depth_chunk")
    names = number_names(own, window.shape)
    function = convolve_function(window.dtype, names)
    preamble = emit_preamble(
        window.dtype,
        window.machine,
        window.channels_last,
        window.activation,
        ("jit/include/parallel", "conv/methods/winograd_block"),
    )
    detail = "general" if window.shape is None else window.shape.describe()
    text = f"""\
// Convolution by row-wise Winograd F({kernel.outputs}, 3): {detail}, {str(window.dtype).removeprefix("torch.")},
// {"channels last" if window.channels_last else "contiguous"}. Register tile: {window.rows} windows x {window.panel} output channels for {window.machine.name}.
// Every sum runs over (kernel row, channel) of one point in this order, whatever the threads.
{preamble}
constexpr int tile_rows = {window.rows}, tile_vectors = {window.vectors}, tile_outputs = {kernel.outputs};
constexpr int64_t panel = tile_vectors * lanes;

{function.prototype()} {{
{emit_sizes_and_shape(names, window.shape)}
{_LOOPS.replace("{DISPATCH}", emit_panel_widths(window))}}}
"""
    return CppSource(f"conv_winograd{kernel.outputs}_{detail}", text, (function,))


_LOOPS = """\
  using Block = WinogradBlock<Value, channels_last, tile_outputs>;
  const int64_t panels = (shape.out_channels + panel - 1) / panel;
  const int64_t tile_blocks = ((out_w + tile_outputs - 1) / tile_outputs + block_tiles - 1) / block_tiles;
  const int64_t row_blocks = batch * out_d * ((out_h + block_rows - 1) / block_rows);
  const int64_t parts = shape.groups * panel_parts, tasks = row_blocks * tile_blocks * parts;
  const int64_t point_values = shape.kernel_h * shape.in_channels;

  // A task is a block of output rows and a part of one group's output channels.
  on_each_thread(threads < tasks ? threads : tasks, [&](int64_t thread, int64_t team) {
    Block block(workspace + thread * thread_bytes, panel, block_rows, block_tiles, shape, sizes);
    int64_t packed = -1;
    for (int64_t task = tasks * thread / team; task < tasks * (thread + 1) / team; ++task) {
      const int64_t part = task % panel_parts, group = task / panel_parts % shape.groups;
      if (task / panel_parts != packed) {
        packed = task / panel_parts;
        block.pack(input, task / parts / tile_blocks, task / parts % tile_blocks, group);
      }

      // Panels of output channels.
      for (int64_t each = panels * part / panel_parts; each < panels * (part + 1) / panel_parts; ++each) {
        const int64_t channel = each * panel;
        const int64_t channels = shape.out_channels - channel < panel ? shape.out_channels - channel : panel;
        // Out here: g++ 12 fails on some constant shapes that only the innermost function reads.
        const int64_t first_channel = group * shape.out_channels + channel;
        const auto run_panel = [&](auto vectors_here) {
          constexpr int vectors = vectors_here;
          const real* of_panel = weights + (group * panels + each) * Block::points * point_values * panel;

          // Points, then chunks of their windows: the weights of a chunk fit the first-level cache.
          for (int64_t point = 0; point < Block::points; ++point) {
            for (int64_t begin = 0; begin < point_values; begin += depth_chunk) {
              const int64_t count = point_values - begin < depth_chunk ? point_values - begin : depth_chunk;
              // Tiles of windows: sums stay in registers for the whole chunk.
              balanced_tiles(block.windows, tile_rows, [&](int64_t window, int64_t size) {
                with_constant<tile_rows>(size, [&](auto rows) {
                  block.template run_tile<rows, vectors>(window, point, begin, count, of_panel + point * point_values * vectors * lanes);
                });
              });
            }
          }
          block.template finish_panel<vectors, Activation>(
              output, residual, first_channel, channels,
              bias == nullptr ? nullptr : bias + (group * panels + each) * panel);
        };
        {DISPATCH}
      }
    }
  });
"""
