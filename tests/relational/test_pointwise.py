"""Every pointwise operation: its slope by gradcheck's rule, its C++ by the generated kernel's."""

import pytest
import torch

from shorthaul.relational.backends import reference
from shorthaul.relational.differentiate import differentiate
from shorthaul.relational.ir import Builder
from shorthaul.relational.pointwise import POINTWISE
from shorthaul.relational.spaces import Space
from shorthaul.relational.topology import Topology
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


def test_step_functions_pass_no_gradient():
    assert [name for name in POINTWISE if name not in SMOOTH] == [
        "equal",
        "sign",
        "step",
        "leaky_step",
        "elu_slope",
        "gelu_slope",
        "silu_slope",
    ]
