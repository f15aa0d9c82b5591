"""Writing the kernel for small groups on channels-last images: whole groups side by side in a vector.

Two groups of four channels fill a vector of eight: the image's channels are spread within the
vector, so that every lane multiplies a channel of its own group. Nothing is packed.
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
from shorthaul.conv.geometry import KernelShape
from shorthaul.conv.machine import VectorMachine
from shorthaul.jit import CppSource


@dataclass(frozen=True)
class GroupedKernel:
    """Everything that decides the text of a grouped kernel."""

    dtype: torch.dtype
    activation: str | None
    machine: VectorMachine
    pixels: int  # of the register tile: neighbouring outputs
    shape: KernelShape


def emit_grouped_kernel(kernel: GroupedKernel) -> CppSource:
    """The kernel `convolve(input, weights, bias, residual, output, workspace, numbers)`."""
    names = number_names(("thread_bytes",), kernel.shape)
    function = convolve_function(kernel.dtype, names)
    preamble = emit_preamble(
        kernel.dtype,
        kernel.machine,
        True,
        kernel.activation,
        ("jit/include/parallel", "conv/methods/grouped_row"),
    )
    shape, dtype = kernel.shape, str(kernel.dtype).removeprefix("torch.")
    text = f"""\
// Convolution in groups of {shape.in_channels} channels on channels-last images: {shape.describe()}, {dtype}.
// Register tile: {kernel.pixels} outputs x 1 vector of channels for {kernel.machine.name}.
// Every sum runs over (kernel column, kernel row, channel) in this order, whatever the threads.
{preamble}
constexpr int tile_pixels = {kernel.pixels}, per_group = {shape.in_channels};
constexpr int64_t channels = {shape.in_channels * shape.groups}, row_stride = {shape.stride[2]};

{function.prototype()} {{
{emit_sizes_and_shape(names, shape)}
{_LOOPS}}}
"""
    return CppSource(f"conv_grouped_{shape.describe()}", text, (function,))


_LOOPS = """\
  const bool is_plain = residual == nullptr && std::is_same_v<Activation, NoActivation>;
  const Span inside = inner_outputs(in_w, (shape.kernel_w - 1) * shape.dilation_w + 1, row_stride, padding_w);
  // Threads own output rows.
  on_each_thread(threads < sizes.rows() ? threads : sizes.rows(), [&](int64_t thread, int64_t team) {
    GroupedRow<Value, Activation, per_group, channels, row_stride> windows(workspace + thread * thread_bytes, shape, sizes);
    for (int64_t each = sizes.rows() * thread / team; each < sizes.rows() * (thread + 1) / team; ++each) {
      const OutputRow row(each, sizes);
      windows.find_rows(input, row);

      // Tiles of neighbouring outputs, then vectors of channels.
      tiles_by_edges(out_w, inside, tile_pixels, [&](int64_t column, int64_t size) {
        const int64_t at = (row.image * sizes.out_plane() + row.position(column, sizes)) * channels;
        const bool is_inner = column >= inside.begin && column < inside.end;
        for (int64_t channel = 0; channel < channels; channel += lanes) {
          const vec begin = bias == nullptr ? vec{} : load(bias + channel);
          const real* of_vector = weights + channel * shape.window_values();
          if (is_inner) {
            with_constant<tile_pixels>(size, [&](auto pixels) {
              if (is_plain) windows.template run_tile<pixels, true, true>(of_vector, &begin, residual, output, column, channel, at);
              else windows.template run_tile<pixels, true, false>(of_vector, &begin, residual, output, column, channel, at);
            });
          } else {
            for (int64_t pixel = 0; pixel < size; ++pixel) {
              windows.template run_tile<1, false, false>(of_vector, &begin, residual, output, column + pixel, channel, at + pixel * step_w * channels);
            }
          }
        }
      });
    }
  });
"""
