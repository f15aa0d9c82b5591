"""Writing the planar kernel: vectors run along the image's width instead of the output channels.

It is for windows that few output channels share: small groups, depthwise, the last layer of a
decoder. Its loops need no constants of the shape, so one kernel serves every shape.
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
class PlanarKernel:
    """Everything that decides the text of a planar kernel."""

    dtype: torch.dtype
    channels_last: bool
    activation: str | None
    machine: VectorMachine
    rows: int  # of the register tile: output channels
    vectors: int  # of the register tile: vectors of neighbouring outputs


def emit_planar_kernel(kernel: PlanarKernel) -> CppSource:
    """The kernel `convolve(input, weights, bias, residual, output, workspace, ...)`."""
    names = number_names(("thread_bytes", "block_rows", "block_columns"), None)
    function = convolve_function(kernel.dtype, names)
    preamble = emit_preamble(
        kernel.dtype,
        kernel.machine,
        kernel.channels_last,
        kernel.activation,
        ("jit/include/parallel", "conv/methods/planar_block"),
    )
    dtype = str(kernel.dtype).removeprefix("torch.")
    layout = "channels_last" if kernel.channels_last else "contiguous"
    text = f"""\
// Convolution vectorised over the width: any shape, {dtype}, {layout}.
// Register tile: {kernel.rows} output channels x {kernel.vectors} vectors of outputs for {kernel.machine.name}.
// Every sum runs over (kernel column, kernel row, channel) in this order, whatever the threads.
{preamble}
constexpr int tile_channels = {kernel.rows}, tile_vectors = {kernel.vectors};

{function.prototype()} {{
{emit_sizes_and_shape(names, None)}
{_LOOPS}}}
"""
    return CppSource(
        f"conv_planar_{kernel.rows}x{kernel.vectors}_{dtype}_{layout}", text, (function,)
    )


_LOOPS = """\
  const int64_t column_blocks = (out_w + block_columns - 1) / block_columns;
  const int64_t row_blocks = batch * out_d * ((out_h + block_rows - 1) / block_rows);
  const int64_t tasks = row_blocks * column_blocks * shape.groups;
  const int64_t all_channels = shape.out_channels * shape.groups;
  const bool is_plain = residual == nullptr && step_w == 1 && std::is_same_v<Activation, NoActivation>;
  const int64_t channel_tiles = (shape.out_channels + tile_channels - 1) / tile_channels;

  // A task is a block of output rows of one image, for one group.
  on_each_thread(threads < tasks ? threads : tasks, [&](int64_t thread, int64_t team) {
    PlanarBlock<Value, channels_last> block(workspace + thread * thread_bytes, block_rows, block_columns, shape);
    for (int64_t task = tasks * thread / team; task < tasks * (thread + 1) / team; ++task) {
      const GroupTask at = find_group_task<channels_last>(task, tasks / batch, shape.groups);
      const int64_t group = at.group, where = at.place;
      block.pack(input, where / column_blocks, where % column_blocks, group, shape, sizes);
      const int64_t row_step = shape.stride_h * block.layout.phases * block.layout.pitch;
      const int64_t row_vectors = (block.columns + lanes - 1) / lanes;

      const auto run_channels = [&](int64_t first_tile, int64_t last_tile, int64_t row, int64_t vector, auto vectors_here, auto adjacent) {
        constexpr int vectors = vectors_here;
        for (int64_t tile = first_tile; tile < last_tile; ++tile) {
          const int64_t first = tile * tile_channels;
          const int64_t left = shape.out_channels - first;
          with_constant<tile_channels>(left, [&](auto count_here) {
            constexpr int count = count_here;
            const int64_t first_channel = group * shape.out_channels + first;
            // Sums that need no more than storing go straight to the output.
            if constexpr (adjacent && Value::is_real && !channels_last) {
              if (is_plain && (vector + vectors) * lanes <= block.columns) {
                real* to = output + block.output_offset(first_channel, row, vector * lanes, all_channels, sizes);
                // The next but one tile's lines: every channel's lie in pages of their own.
                for (int channel = 0; channel < count; ++channel) {
                  const real* later = to + channel * sizes.out_plane() + 2 * vectors * lanes;
                  __builtin_prefetch(later, 1);
                  __builtin_prefetch(later + 64 / sizeof(real), 1);
                }
                block.template run_tile<count, vectors, adjacent>(
                    to, sizes.out_plane(),
                    block.planes + row * row_step + vector * lanes, row_step,
                    weights + (group * channel_tiles + tile) * shape.window_values() * tile_channels,
                    bias == nullptr ? nullptr : bias + first_channel, shape);
                return;
              }
            }
            real sums[count * vectors * lanes];
            block.template run_tile<count, vectors, adjacent>(
                sums, vectors * lanes, block.planes + row * row_step + vector * lanes, row_step,
                weights + (group * channel_tiles + tile) * shape.window_values() * tile_channels,
                bias == nullptr ? nullptr : bias + first_channel, shape);
            if constexpr (channels_last && count > 1 && count <= lanes) {
              for (int v = 0; v < vectors; ++v) {
                block.template finish_pixels<count, Activation>(
                    output, residual, first_channel, adjacent ? row : row + v, adjacent ? (vector + v) * lanes : 0,
                    sums + v * lanes, vectors * lanes, all_channels, sizes);
              }
              return;
            }
            for (int channel = 0; channel < count; ++channel) {
              const int64_t out_channel = first_channel + channel;
              const real* of_channel = sums + channel * vectors * lanes;
              if (adjacent) {
                block.template finish_line<Activation>(output, residual, out_channel, row, vector * lanes, of_channel, vectors, all_channels, sizes);
              } else {
                for (int v = 0; v < vectors; ++v) {
                  block.template finish_line<Activation>(output, residual, out_channel, row + v, 0, of_channel + v * lanes, 1, all_channels, sizes);
                }
              }
            }
          });
        }
      };

      if (row_vectors > 1) {
        // Rows, tiles of neighbouring vectors, and tiles of output channels: innermost, so that the
        // values under a tile stay in the first-level cache; outside, where all values do, so that
        // the output is written in long lines.
        const int64_t channel_step = block.is_small(shape) ? 1 : channel_tiles;
        for (int64_t row = 0; row < block.rows; ++row) {
          for (int64_t first = 0; first < channel_tiles; first += channel_step) {
            balanced_tiles(row_vectors, tile_vectors, [&](int64_t vector, int64_t size) {
              with_constant<tile_vectors>(size, [&](auto vectors) {
                run_channels(first, first + channel_step, row, vector, vectors, std::true_type{});
              });
            });
          }
        }
      } else {
        // Short rows: tiles of rows, one vector each.
        constexpr int tile_rows = tile_vectors < 4 ? tile_vectors : 4;
        balanced_tiles(block.rows, tile_rows, [&](int64_t row, int64_t size) {
          with_constant<tile_rows>(size, [&](auto vectors) { run_channels(0, channel_tiles, row, 0, vectors, std::false_type{}); });
        });
      }
    }
  });
"""
