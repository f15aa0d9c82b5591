"""Writing the kernel for the gradient of the bias: the output gradient summed over all pixels.

Sums are taken over blocks whose size no thread count changes, and blocks are added in order.
"""

from __future__ import annotations

import torch

from shorthaul.conv.layout.function import sum_dtype
from shorthaul.conv.methods.text import emit_preamble
from shorthaul.conv.problem.machine import VectorMachine, this_machine
from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    Kernel,
    NumberArgument,
    TensorArgument,
    ThreadsArgument,
)
from shorthaul.jit.compiling.loading import kept_when_ready, load_when_ready

BLOCK_PIXELS = 1024  # of channels-last images; a contiguous image has a block for each plane

_CHANNELS_LAST = """\
  const int64_t pixels = images * plane;
  parallel_for(blocks, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      real* own = partial + block * channels;
      for (int64_t channel = 0; channel < channels; ++channel) own[channel] = 0;
      const int64_t last = (block + 1) * block_pixels < pixels ? (block + 1) * block_pixels : pixels;
      for (int64_t pixel = block * block_pixels; pixel < last; ++pixel) {
        const auto* from = gradient + pixel * channels;
        int64_t channel = 0;
        for (; channel + lanes <= channels; channel += lanes) {
          store(own + channel, load(own + channel) + Value::load(from + channel));
        }
        for (; channel < channels; ++channel) own[channel] += Value::widen(from[channel]);
      }
    }
  });
"""

_CONTIGUOUS = """\
  // A block is a plane: images times channels of them, as many sums at a time as hide an addition.
  parallel_for(blocks * channels, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const auto* from = gradient + block * plane;
      constexpr int chains = 4;
      vec sums[chains] = {};
      int64_t at = 0;
      for (; at + chains * lanes <= plane; at += chains * lanes) {
        for (int chain = 0; chain < chains; ++chain) sums[chain] += Value::load(from + at + chain * lanes);
      }
      const vec together = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      real sum = 0;
      for (int lane = 0; lane < lanes; ++lane) sum += together[lane];
      for (; at < plane; ++at) sum += Value::widen(from[at]);
      partial[block] = sum;
    }
  });
"""


def emit_grad_bias_kernel(
    dtype: torch.dtype, channels_last: bool, machine: VectorMachine
) -> CppSource:
    """The kernel `sum_channels(gradient, partial, sums, images, plane)`."""
    real = sum_dtype(dtype)
    function = Function(
        "sum_channels",
        (
            TensorArgument("gradient", dtype, is_contiguous=False),
            TensorArgument("partial", real, ("blocks", "channels"), is_written=True),
            TensorArgument("sums", real, ("channels",), is_written=True),
            NumberArgument("images", "int64"),
            NumberArgument("plane", "int64"),
            DimensionArgument("blocks"),
            DimensionArgument("channels"),
            ThreadsArgument(),
        ),
    )
    layout = "channels_last" if channels_last else "contiguous"
    name = str(dtype).removeprefix("torch.")
    text = f"""\
// Gradient of the bias of a convolution: {name}, {layout.replace("_", " ")}, for {machine.name}.
{emit_preamble(dtype, machine, channels_last, None, ("jit/include/parallel", "conv/methods/output"))}
[[maybe_unused]] constexpr int64_t block_pixels = {BLOCK_PIXELS};

{function.prototype()} {{
{_CHANNELS_LAST if channels_last else _CONTIGUOUS}
  for (int64_t channel = 0; channel < channels; ++channel) sums[channel] = 0;
  for (int64_t block = 0; block < blocks; ++block) {{
    for (int64_t channel = 0; channel < channels; ++channel) sums[channel] += partial[block * channels + channel];
  }}
}}
"""
    return CppSource(f"conv_grad_bias_{name}_{layout}", text, (function,))


@kept_when_ready
def grad_bias_kernel(dtype: torch.dtype, channels_last: bool) -> Kernel:
    """The compiled kernel."""
    return load_when_ready(emit_grad_bias_kernel(dtype, channels_last, this_machine()), "ATen")
