"""Functions of the kernels' own header in float32, against PyTorch's in float64, wherever they are defined."""

import pytest
import torch

from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    Kernel,
    TensorArgument,
    load_kernel,
)

SOURCE = """
#include "shorthaul/relational/real.h"

extern "C" void evaluate(const float* x, float* exps, float* gelus, float* slopes, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    exps[i] = shorthaul::exponential(x[i]);
    gelus[i] = shorthaul::gelu(x[i]);
    slopes[i] = shorthaul::gelu_slope(x[i]);
  }
}
"""
UNIT = 2.0**-23  # of the last place, for numbers from 1 to 2


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    names = ("x", "exps", "gelus", "slopes")
    tensors = [
        TensorArgument(each, torch.float32, ("n",), is_written=each != "x") for each in names
    ]
    function = Function("evaluate", (*tensors, DimensionArgument("n")))
    return load_kernel(CppSource("real_functions", SOURCE, (function,)))


def evaluate(kernel: Kernel, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    found = torch.empty(3, len(x))
    kernel.evaluate(x, *found)
    return tuple(found.double())


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((found - expected).abs() / expected.abs()).max())


def test_exponentials_are_right_to_the_last_places(kernel: Kernel) -> None:
    x = torch.linspace(-87, 88, 1_000_001)
    exps, _, _ = evaluate(kernel, x)
    assert relative_error(exps, x.double().exp()) < 2 * UNIT


def test_gelu_is_right_and_loses_places_only_where_it_vanishes(kernel: Kernel) -> None:
    """The rounding of z^2 is an error of that many units in exp(-z^2); PyTorch's own loses all by -5."""
    for low, high, units in ((-1, 20, 4), (-4, -1, 16), (-8, -4, 64)):
        x = torch.linspace(low, high, 1_000_000)  # an even count: 0 is not among them
        _, gelus, slopes = evaluate(kernel, x)
        exact = x.double().requires_grad_()
        expected = 0.5 * exact * torch.special.erfc(-exact * 0.5**0.5)
        (slope,) = torch.autograd.grad(expected.sum(), exact)
        assert relative_error(gelus, expected.detach()) < units * UNIT
        assert float((slopes - slope).abs().max()) < 4 * UNIT


def test_what_is_no_number_or_has_no_end_passes_as_in_pytorch(kernel: Kernel) -> None:
    x = torch.tensor([0.0, -0.0, torch.inf, -20.0, -100.0, torch.nan])
    exps, gelus, _ = evaluate(kernel, x)
    torch.testing.assert_close(exps, x.exp().double(), equal_nan=True, rtol=1e-6, atol=0)
    expected = 0.5 * x.double() * torch.special.erfc(-x.double() * 0.5**0.5)
    torch.testing.assert_close(gelus, expected, equal_nan=True, rtol=0, atol=1e-38)
