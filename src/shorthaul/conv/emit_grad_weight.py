"""Writing the kernel for the gradient of the weights: windows times output gradients, by pixels.

The gradient is summed in the packed order of the weights, so that a register tile of it is a few
rows of one panel. Threads own parts of the weights and go over the same blocks of pixels in the
same order. Small weights are summed in a fixed number of stretches of the blocks instead, which are then
added up in order. Either way the threads decide no sum, so results do not depend on how many there are.
"""

from __future__ import annotations

from shorthaul.conv.emit_function import (
    ADD_STRETCHES,
    emit_sizes_and_shape,
    number_names,
    sum_windows_function,
)
from shorthaul.conv.emit_window import WindowKernel, emit_panel_widths, emit_preamble
from shorthaul.jit import CppSource


def emit_grad_weight_kernel(kernel: WindowKernel) -> CppSource:
    """The kernel `sum_windows(input, gradient, weights, workspace, ...)`; `weights` are packed."""
    own = (
        "thread_bytes", "block_rows", "block_columns", "panel_parts", "channel_chunk", "stretches",
    )  # fmt: skip
    names = number_names(own, kernel.shape)
    function = sum_windows_function(kernel.dtype, names)
    preamble = emit_preamble(
        kernel.dtype,
        kernel.machine,
        kernel.channels_last,
        None,
        ("jit/include/parallel", "conv/methods/gradient_block"),
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
      GradientBlock<Value, channels_last> block(workspace + thread * thread_bytes, panel, block_rows, block_columns,
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
