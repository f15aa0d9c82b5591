"""Every pass keeps the numbers: on drawn graphs, forward and backward, together and left out."""

import pytest
import torch
from hypothesis import given, settings

from shorthaul.relational.lowering.kernels import CHOICES
from shorthaul.relational.passes import PASS_NAMES, PIPELINE, run_passes
from shorthaul.relational.passes.differentiate import differentiate
from shorthaul.relational.passes.rewriting import GraphSizes
from shorthaul.relational.topology.topology import Topology
from tests.graphs.drawn_graphs import edge_lists
from tests.relational.programs import LAYERS, draw_inputs, record, run_detached, sample_graph


def _check(program, topology, without=()):
    inputs = draw_inputs(program, topology)
    sizes = GraphSizes.of(topology)
    whole = differentiate(program, list(inputs))
    arrived = torch.randn(topology.num_targets, *program["out"].shape, dtype=torch.float64)
    inputs["gradient_of_out"] = arrived
    expected = run_detached(whole, topology, inputs)
    *_, (_, forward) = run_passes(program, sizes, without)
    for each, made in run_passes(differentiate(forward, list(inputs)[:-1]), sizes, without):
        got = run_detached(made, topology, inputs)
        for name, value in expected.items():
            torch.testing.assert_close(
                got[name], value, msg=lambda m, at=(each, name): f"{at}: {m}"
            )


@pytest.mark.parametrize("name", LAYERS)
def test_numbers_before_and_after_each_pass(name):
    _check(record(LAYERS[name]), Topology.of(sample_graph()))


@pytest.mark.parametrize("without", [name for name in PASS_NAMES if name not in CHOICES])
def test_any_pass_can_be_left_out(without):
    _check(record(LAYERS["attend"]), Topology.of(sample_graph()), (without,))


@settings(max_examples=15, deadline=None)
@given(edge_lists())
def test_any_graph(edges):
    for name in ("convolve", "attend", "everything"):
        _check(record(LAYERS[name]), Topology.of(edges.graph()))


def test_the_pipeline_names_its_passes():
    assert (*dict.fromkeys(each.__name__ for each in PIPELINE), *CHOICES) == PASS_NAMES
    assert all("Rewrites" in each.__doc__ and "->" in each.__doc__ for each in PIPELINE)
