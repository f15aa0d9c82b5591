"""Gradients as steps agree with PyTorch's through the reference backend."""

import pytest
import torch

from shorthaul.relational.backends import reference
from shorthaul.relational.ir.program import Builder
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.passes.differentiate import differentiate
from shorthaul.relational.topology.topology import Topology
from tests.relational.programs import LAYERS, draw_inputs, record, run_detached, sample_graph


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_pytorchs(name):
    program, topology = record(LAYERS[name]), Topology.of(sample_graph())
    inputs = draw_inputs(program, topology)
    out = reference.run(program, topology, inputs)["out"]
    arrived = torch.randn_like(out)
    expected = torch.autograd.grad(out, list(inputs.values()), arrived)
    whole = differentiate(program, list(inputs))
    got = run_detached(whole, topology, {**inputs, "gradient_of_out": arrived})
    for each, wanted in zip(inputs, expected, strict=True):
        torch.testing.assert_close(got[f"gradient_of_{each}"], wanted, msg=each)


def test_only_what_was_asked_for_is_computed():
    whole = differentiate(record(LAYERS["convolve"]), ["weight"])
    assert [name for name, _ in whole.outputs] == ["out", "gradient_of_weight"]
    assert not any(step.get("transposed") for step in whole.steps)  # nothing for x


def test_an_input_that_does_not_matter_has_a_zero_gradient():
    make = Builder("idle")
    make.input("x", (2,), Space.NODE, "node")
    make.input("y", (2,), Space.NODE, "node")
    whole = differentiate(make.build([("out", make.add("exp", "x"))]), ["y"])
    topology = Topology.of(sample_graph())
    inputs = draw_inputs(whole, topology)
    inputs["gradient_of_out"] = torch.ones(9, 2, dtype=torch.float64)
    assert not run_detached(whole, topology, inputs)["gradient_of_y"].any()


def test_a_gradient_has_none_of_its_own():
    whole = differentiate(record(LAYERS["convolve"]), ["weight"])
    with pytest.raises(NotImplementedError, match="outer"):
        differentiate(whole, ["x"])
