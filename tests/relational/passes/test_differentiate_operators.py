"""Every operator of the language in every space: the gradients that the compiler derives are those that
differences of outputs show, in float64.
"""

import pytest
import torch

from shorthaul.relational.backends import reference
from shorthaul.relational.passes.differentiate import differentiate
from shorthaul.relational.topology.topology import Topology
from tests.relational.drawn_programs import (
    ANYWHERE,
    OF_EDGES,
    OF_NODES,
    REDUCTIONS,
    WITH_WEIGHTS,
    Recipe,
    record,
)
from tests.relational.programs import LAYERS, SIZES, draw_inputs, sample_graph, widths_of
from tests.relational.programs import record as record_layer

SEED = 5
GRAPH = sample_graph(nodes=5, edges=9, relations=2)


class _Differentiated(torch.autograd.Function):
    """A program whose gradients are the compiler's own steps, not PyTorch's."""

    @staticmethod
    def forward(context, program, topology, names, *tensors):
        context.program, context.topology, context.names = program, topology, names
        context.save_for_backward(*tensors)
        given = dict(zip(names, tensors, strict=True))
        return tuple(reference.run(program, topology, given, SEED).values())

    @staticmethod
    def backward(context, *arrived):
        given = dict(zip(context.names, context.saved_tensors, strict=True))
        for (name, _), gradient in zip(context.program.outputs, arrived, strict=True):
            given[f"gradient_of_{name}"] = gradient
        whole = differentiate(context.program, context.names)
        wanted = {step.name for step in whole.inputs}
        given = {name: value for name, value in given.items() if name in wanted}
        found = reference.run(whole, context.topology, given, SEED)
        return None, None, None, *(found[f"gradient_of_{name}"] for name in context.names)


def _check(program, topology):
    inputs = draw_inputs(program, topology)
    names = tuple(inputs)
    assert torch.autograd.gradcheck(
        lambda *tensors: _Differentiated.apply(program, topology, names, *tensors),
        tuple(inputs.values()),
        fast_mode=True,
    )


EVERYWHERE = (*ANYWHERE, *WITH_WEIGHTS)
CASES = [
    *(("nodes", name) for name in (*EVERYWHERE, *OF_NODES)),
    *(("edges", name) for name in (*EVERYWHERE, *OF_EDGES)),
    *(("targets", name) for name in (*EVERYWHERE, *OF_NODES)),
]


@pytest.mark.parametrize(("space", "name"), CASES, ids="-".join)
def test_an_operator_in_a_space(space, name):
    steps = {"nodes": (), "edges": (), "targets": (), space: ((name, 1, 2),)}
    more = {"nodes": "node", "edges": "edge", "targets": ""}[space]
    recipe = Recipe(3, steps["nodes"], steps["edges"], (("sum", 0, 0),), steps["targets"], more)
    _check(record(recipe), Topology.of(GRAPH, 5))


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_a_reduction(kind):
    recipe = Recipe(3, (), (("multiply", 1, 2),), ((kind, 0, 0),), (), "")
    _check(record(recipe), Topology.of(GRAPH))


@pytest.mark.parametrize("name", LAYERS)
def test_whole_layers(name):
    _check(record_layer(LAYERS[name]), Topology.of(GRAPH))


@pytest.mark.parametrize("name", ["attend", "transform", "everything"])
def test_generated_kernels(name):
    options = {each: SIZES[each] for each in LAYERS[name].options}
    made = LAYERS[name](relations=16, node_types=2, **widths_of(LAYERS[name], **options)).double()
    graph = sample_graph(nodes=30, edges=400)
    inputs = draw_inputs(made.program, Topology.of(graph))
    names = [each for each in inputs if each in made.function.feature_names]
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64) / 2)

    def call(*features):
        return made(graph, **dict(zip(names, features, strict=True)))

    assert torch.autograd.gradcheck(call, tuple(inputs[each] for each in names), fast_mode=True)
