"""A small kernel that shows whether generated code works here: `out = factor * x + y`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    Kernel,
    NumberArgument,
    TensorArgument,
    ThreadsArgument,
    load_kernel,
)


@dataclass(frozen=True)
class SampleRun:
    """One run of the sample, compared with PyTorch."""

    kernel: Kernel
    is_equal: bool
    elements: int


def emit_scaled_sum() -> CppSource:
    """The source of `scaled_sum`."""
    text = """\
#include "shorthaul/jit/include/parallel.h"

// out[i] = factor * x[i] + y[i]; threads own contiguous chunks of elements
void scaled_sum(const float* x, const float* y, double factor, float* out, int64_t n,
                int64_t threads) {
  const float scale = static_cast<float>(factor);
  shorthaul::parallel_for(n, 1024, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = scale * x[i] + y[i];
  });
}
"""
    return CppSource(
        "scaled_sum",
        text,
        (
            Function(
                "scaled_sum",
                (
                    TensorArgument("x", torch.float32, ("n",)),
                    TensorArgument("y", torch.float32, ("n",)),
                    NumberArgument("factor", "float64"),
                    TensorArgument("out", torch.float32, ("n",), is_written=True),
                    DimensionArgument("n"),
                    ThreadsArgument(),
                ),
            ),
        ),
    )


def run_sample(elements: int = 100_000) -> SampleRun:
    """Compile (or find) the sample, run it on all threads and compare it with PyTorch."""
    kernel = load_kernel(emit_scaled_sum())
    # Whole numbers below 2**24 are exact in float32, so the results must be equal to the last bit.
    x = torch.arange(elements, dtype=torch.float32, device="cpu")
    y = torch.arange(elements, dtype=torch.float32, device="cpu").flip(0)
    out = torch.full_like(x, torch.nan)
    kernel.scaled_sum(x, y, 3.0, out)
    return SampleRun(kernel, torch.equal(out, 3 * x + y), elements)
