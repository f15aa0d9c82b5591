"""Every pointwise operation: its slope by gradcheck's rule, its C++ by the generated kernel's."""

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
from shorthaul.relational.backends import reference
from shorthaul.relational.ir.pointwise import POINTWISE
from shorthaul.relational.ir.program import Builder
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.passes.differentiate import differentiate
from shorthaul.relational.topology.topology import Topology
from tests.relational.programs import draw_inputs, run_detached, sample_graph

ATTRIBUTES = {"scale": {"by": 0.7}, "shift": {"by": 0.3}, "leaky_relu": {"slope": 0.1}}
SMOOTH = [name for name, each in POINTWISE.items() if each.gradients is not None]


@pytest.mark.parametrize("name", SMOOTH)
def test_slopes_are_pytorchs(name):
    make = Builder(name)
    operands = ["x", "y"][: POINTWISE[name].operands]
    for each in operands:
        make.input(each, (3,), Space.NODE, "node")
    made = make.add(name, *operands, **ATTRIBUTES.get(name, {}))
    program = make.build([("out", made)])
    topology = Topology.of(sample_graph())
    inputs = draw_inputs(program, topology)
    if name in ("log", "sqrt"):
        inputs = {
            key: (value.detach().abs() + 0.1).requires_grad_() for key, value in inputs.items()
        }
    out = reference.run(program, topology, inputs)["out"]
    arrived = torch.randn_like(out)
    expected = torch.autograd.grad(out, list(inputs.values()), arrived)
    whole = differentiate(program, operands)
    got = run_detached(whole, topology, {**inputs, "gradient_of_out": arrived})
    for each, wanted in zip(operands, expected, strict=True):
        torch.testing.assert_close(got[f"gradient_of_{each}"], wanted)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_of_equal_operands_each_has_half_the_gradient(name):
    make = Builder(name)
    for each in ("x", "y"):
        make.input(each, (3,), Space.NODE, "node")
    program = make.build([("out", make.add(name, "x", "y"))])
    topology = Topology.of(sample_graph())
    inputs = draw_inputs(program, topology)
    inputs["y"] = inputs["x"].detach().clone().requires_grad_()
    whole = differentiate(program, ["x", "y"])
    arrived = torch.ones_like(inputs["x"])
    got = run_detached(whole, topology, {**inputs, "gradient_of_out": arrived})
    for each in ("x", "y"):
        torch.testing.assert_close(got[f"gradient_of_{each}"], arrived / 2)


def test_step_functions_pass_no_gradient():
    assert [name for name in POINTWISE if name not in SMOOTH] == [
        "share_above",
        "equal",
        "zero",
        "sign",
        "step",
        "leaky_step",
        "elu_slope",
        "gelu_slope",
        "silu_slope",
    ]


# The kernels' own functions in float32, against PyTorch's in float64, wherever they are defined.

SOURCE = """
#include "shorthaul/relational/backends/cpp/real.h"

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
