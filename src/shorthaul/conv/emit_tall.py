"""Writing the tall kernel: depthwise convolutions whose kernels are eight rows high or more.

One vector of channels is packed at a time, so that rows and pixels lie close together however many channels
there are. Image rows and kernel columns that are zero padding are left out. Its loops need no constants of the
shape, so one kernel serves every shape.
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
class TallKernel:
    """Everything that decides the text of a tall kernel."""

    dtype: torch.dtype
    channels_last: bool
    activation: str | None
    machine: VectorMachine
    rows: int  # of the register tile: output rows
    pixels: int  # of the register tile: neighbouring outputs


def emit_tall_kernel(kernel: TallKernel) -> CppSource:
    """The kernel `convolve(input, weights, bias, residual, output, workspace, numbers)`."""
    names = number_names(("thread_bytes", "block_rows", "block_columns"), None)
    function = convolve_function(kernel.dtype, names)
    preamble = emit_preamble(
        kernel.dtype,
        kernel.machine,
        kernel.channels_last,
        kernel.activation,
        ("jit/include/parallel", "conv/methods/tall_block"),
    )
    dtype = str(kernel.dtype).removeprefix("torch.")
    layout = "channels_last" if kernel.channels_last else "contiguous"
    text = f"""\
// Depthwise convolution, {kernel.rows} rows high or more: any shape, {dtype}, {layout}.
// Register tile: {kernel.rows} output rows x {kernel.pixels} vectors of channels for {kernel.machine.name}.
// Every sum runs over (kernel column, kernel row) in this order, whatever the threads.
{preamble}
constexpr int tile_rows = {kernel.rows}, tile_pixels = {kernel.pixels};

{function.prototype()} {{
{emit_sizes_and_shape(names, None)}
{_LOOPS}}}
"""
    return CppSource(f"conv_tall_{dtype}_{layout}", text, (function,))


_LOOPS = """\
  const int64_t vectors = (shape.groups + lanes - 1) / lanes;
  const int64_t row_blocks = (out_h + block_rows - 1) / block_rows;
  const int64_t column_blocks = (out_w + block_columns - 1) / block_columns;
  const int64_t tasks = batch * out_d * vectors * row_blocks * column_blocks;
  // A task is a block of outputs of one vector of channels of one image.
  on_each_thread(threads < tasks ? threads : tasks, [&](int64_t thread, int64_t team) {
    TallBlock<Value, Activation, channels_last, tile_rows, tile_pixels> block(
        workspace + thread * thread_bytes, block_columns, shape, sizes);
    for (int64_t task = tasks * thread / team; task < tasks * (thread + 1) / team; ++task) {
      // Vectors of channels share pages, and pairs of cache lines: they follow each other.
      const int64_t vector = task % vectors, place = task / vectors, row_block = place / column_blocks;
      const Span rows = even_part(out_h, block_rows, row_block % row_blocks);
      const Span columns = even_part(out_w, block_columns, place % column_blocks);
      block.pack(input, row_block / row_blocks, vector, rows, columns);
      block.run(weights + vector * shape.window_values() * lanes, bias == nullptr ? nullptr : bias + vector * lanes,
                residual, output);
    }
  });
"""
