"""Writing the kernel for groups whose output channels are one vector: tiles that sweep over image columns.

With so few channels every product needs a value of its own, and loads are as many as products. A tile
that goes from image column to image column loads a value once for all kernel columns, and a weight
once for all of its rows: 12 loads for 27 products of a kernel three columns wide, where the window
kernel has 17 for 16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shorthaul.conv.emit_function import (
    convolve_function,
    emit_sizes_and_shape,
    number_names,
    sum_dtype,
)
from shorthaul.conv.emit_window import emit_preamble
from shorthaul.conv.geometry import KernelShape
from shorthaul.conv.machine import VectorMachine
from shorthaul.jit import CppSource


@dataclass(frozen=True)
class SweepKernel:
    """Everything that decides the text of a sweep kernel."""

    dtype: torch.dtype
    channels_last: bool
    activation: str | None
    machine: VectorMachine
    rows: int  # of the register tile: output rows
    shape: KernelShape
    bundled: int = 1  # groups that share a vector


def emit_sweep_kernel(kernel: SweepKernel) -> CppSource:
    """The kernel `convolve(input, weights, bias, residual, output, workspace, numbers)`."""
    names = number_names(
        ("thread_bytes", "block_rows", "block_columns", "block_bundles"), kernel.shape
    )
    function = convolve_function(kernel.dtype, names)
    preamble = emit_preamble(
        kernel.dtype,
        kernel.machine,
        kernel.channels_last,
        kernel.activation,
        ("jit/include/parallel", "conv/methods/sweep_block"),
    )
    shape, dtype = kernel.shape, str(kernel.dtype).removeprefix("torch.")
    lanes = kernel.machine.lanes(sum_dtype(kernel.dtype).itemsize)
    template = (
        shape.kernel[2],
        shape.kernel[1],
        shape.in_channels,
        kernel.bundled,
        shape.stride[1],
        shape.dilation[1],
    )
    further = "" if kernel.bundled == 1 else f" of {kernel.bundled} groups in turn"
    text = f"""\
// Convolution in groups of {shape.out_channels} output channels: {shape.describe()}, {dtype},
// {"channels last" if kernel.channels_last else "contiguous"}. Register tile: {kernel.rows} output rows x {shape.kernel[2]} outputs that share an image column x {lanes} output channels{further}
// for {kernel.machine.name}. Every sum runs over (kernel column, kernel row, channel) in this order, whatever the threads.
{preamble}
constexpr int tile_rows = {kernel.rows};
using Block = SweepBlock<Value, Activation, channels_last, {", ".join(map(str, template))}>;
constexpr int64_t bundled = {kernel.bundled};

{function.prototype()} {{
{emit_sizes_and_shape(names, shape)}
{_LOOPS}}}
"""
    return CppSource(f"conv_sweep_{shape.describe()}", text, (function,))


_LOOPS = """\
  const int64_t row_blocks = (out_h + block_rows - 1) / block_rows;
  const int64_t column_blocks = (out_w + block_columns - 1) / block_columns;
  const int64_t bundles = shape.groups / bundled, bundle_blocks = (bundles + block_bundles - 1) / block_bundles;
  const int64_t tasks = batch * out_d * row_blocks * column_blocks * bundle_blocks;

  // A task is a block of outputs of a few bundles of groups of one image.
  on_each_thread(threads < tasks ? threads : tasks, [&](int64_t thread, int64_t team) {
    Block block(workspace + thread * thread_bytes, tile_rows, block_columns, shape, sizes);
    for (int64_t task = tasks * thread / team; task < tasks * (thread + 1) / team; ++task) {
      const GroupTask at = find_group_task<channels_last>(task, tasks / batch, bundle_blocks);
      const int64_t place = at.place, row_block = place / column_blocks;
      const Span some = even_part(bundles, block_bundles, at.group);
      const Span rows = even_part(out_h, block_rows, row_block % row_blocks);
      block.pack(input, row_block / row_blocks, rows, place % column_blocks, some);

      // Tiles of rows, then bundles; each sweeps over the columns of the block.
      balanced_tiles(rows.end - rows.begin, tile_rows, [&](int64_t row, int64_t size) {
        with_constant<tile_rows>(size, [&](auto tile) {
          const real* strip = block.packed;
          for (int64_t bundle = some.begin; bundle < some.end; ++bundle, strip += block.strip()) {
            block.template run_tile<tile>(strip, row, bundle, weights + bundle * shape.window_values() * lanes,
                                          bias == nullptr ? nullptr : bias + bundle * lanes, residual, output);
          }
        });
      });
    }
  });
"""
