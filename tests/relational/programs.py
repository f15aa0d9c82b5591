"""Layers and graphs that the tests of the compiler share."""

from __future__ import annotations

import torch

from shorthaul.graphs import RelationalGraph
from shorthaul.relational import (
    EdgeFeature,
    NodeFeature,
    Weight,
    concat,
    dot,
    dropout,
    elu,
    exp,
    gelu,
    layer,
    layer_norm,
    leaky_relu,
    linear,
    log,
    outer,
    over_nodes,
    reduce_max,
    reduce_mean,
    reduce_min,
    relu,
    sigmoid,
    silu,
    softmax,
    sqrt,
    tanh,
    total,
)
from shorthaul.relational.backends import reference
from shorthaul.relational.compiled_layer import LayerDefinition
from shorthaul.relational.frontend.trace import trace
from shorthaul.relational.ir.program import Program
from shorthaul.relational.passes.rewriting import GraphSizes
from shorthaul.relational.topology.topology import Topology

SIZES = {"width": 5, "out": 3, "heads": 2}


def widths_of(definition: LayerDefinition, **more: int) -> dict[str, int]:
    """Those of `SIZES`, and of more, that a layer has."""
    given = {**SIZES, **more}
    return {name: value for name, value in given.items() if name in definition.size_names}


@layer
def convolve(g, x: NodeFeature("width"), weight: Weight("relation", "width", "out")):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += linear(e.source.x, weight[e.relation]) / e.count(within="relation")
    return n.out


@layer
def attend(
    g,
    x: NodeFeature("width"),
    weight: Weight("relation", "width", "heads*out"),
    query: Weight("heads*out", "heads"),
    key: Weight("heads*out", "heads"),
    bias: Weight("heads*out"),
    *,
    heads,
):
    for e in g.edges():
        e.value = linear(e.source.x, weight[e.relation])
        target = linear(linear(e.target.x, weight[e.relation]), query)
        e.alpha = softmax(leaky_relu(target + linear(e.value, key), 0.2))
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.sum += e.alpha.reshape(heads, 1) * e.value.reshape(heads, -1)
        n.out = n.sum.reshape(-1) + bias
    return n.out


@layer
def additive(
    g,
    x: NodeFeature("width"),
    weight: Weight("relation", "width", "out"),
    query: Weight("width", "out"),
    score: Weight("out", 1),
    bias: Weight("relation", 1),
):
    """Attention by a hidden layer: a product per edge, of a power per edge."""
    for e in g.edges():
        e.value = linear(e.source.x, weight[e.relation])
        e.hidden = tanh(e.value + linear(e.target.x, query))
        e.alpha = softmax(leaky_relu(linear(e.hidden, score) + bias[e.relation]))
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += e.alpha * e.value
    return n.out


@layer
def transform(
    g,
    x: NodeFeature("width"),
    key: Weight("node_type", "width", "heads*out"),
    query: Weight("node_type", "width", "heads*out"),
    agree: Weight("relation", "heads", "out", "out"),
    prior: Weight("relation", "heads", "1"),
    *,
    heads,
):
    for n in g.nodes():
        n.key = linear(n.x, key[n.type]).reshape(heads, -1)
        n.query = linear(n.x, query[n.type]).reshape(heads, -1)
    for e in g.edges():
        score = dot(linear(e.source.key, agree[e.relation]), e.target.query) * prior[e.relation]
        e.alpha = softmax(score, within="relation")
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.sum += e.alpha * e.source.key
        n.out = gelu(n.sum.reshape(-1))
    return n.out


@layer
def everything(
    g,
    x: NodeFeature("width"),
    weight: Weight("relation", "width", "out"),
    strength: EdgeFeature(),
    detail: EdgeFeature("width"),
    vector: Weight("relation", "out"),
    joined: Weight("2*width", "out"),
    scale: Weight("out"),
    shift: Weight("out"),
):
    """Every operation of the language at least once."""
    for e in g.edges():
        e.message = linear(e.source.x, weight[e.relation]) * vector[e.relation]
        both = linear(concat(e.source.x, e.target.x + e.detail), joined)
        gate = sigmoid(both) * tanh(both) + silu(both) + elu(both) - relu(both)
        e.message = e.message * e.strength.reshape(1) + gate
        e.peak = reduce_max(e.message, within="relation")
        e.turned = total(outer(e.message, e.peak), 1).reshape(-1)
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.high = reduce_max(e.message)
            n.low = reduce_min(e.message)
            n.mean = reduce_mean(e.turned)
            n.sum += e.message
        squashed = log(1.0 + exp(n.mean / 4.0)) + sqrt(1.0 + n.sum * n.sum)
        first, rest = (n.high - n.low).split(1, 2)
        n.out = layer_norm(squashed + concat(rest, first), scale, shift)
    return n.out


@layer
def drop(g, x: NodeFeature("width")):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += dropout(e.source.x, 0.5)
    return n.out


@layer
def normalize(g, x: NodeFeature("width"), strength: EdgeFeature()):
    """What arrives at a target is read again where the target is a source."""
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.first += e.source.x * e.strength.reshape(1)
            n.degree += e.strength.reshape(1)
        n.again = over_nodes(n.first)
        n.scale = over_nodes(1 / sqrt(1 + n.degree**2))
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += tanh(e.source.again) * e.source.scale * e.target.scale
    return n.out


LAYERS: dict[str, LayerDefinition] = {
    "convolve": convolve,
    "additive": additive,
    "attend": attend,
    "transform": transform,
    "everything": everything,
    "normalize": normalize,
}


def record(definition: LayerDefinition) -> Program:
    options = {name: SIZES[name] for name in definition.options}
    return trace(definition.function, SIZES, options)


def sample_graph(nodes: int = 9, edges: int = 40, relations: int = 4) -> RelationalGraph:
    """Two types of nodes, repeated edges, one relation without edges, isolated nodes."""
    generator = torch.Generator().manual_seed(nodes * edges)
    first = nodes // 3
    source = torch.randint(nodes, (edges,), generator=generator)
    target = torch.randint(nodes - 1, (edges,), generator=generator)
    relation = torch.randint(relations - 1, (edges,), generator=generator)
    kinds = torch.tensor([0, 1])[(source >= first).long()] * 2 + (target >= first).long()
    names = [
        (one, f"{number}", other)
        for number in range(relations)
        for one in ("a", "b")
        for other in ("a", "b")
    ]
    return RelationalGraph.from_edges(
        source,
        target,
        relation * 4 + kinds,
        relations=names,
        nodes_per_type={"a": first, "b": nodes - first},
    )


def draw_inputs(
    program: Program, topology: Topology, dtype: torch.dtype = torch.float64
) -> dict[str, torch.Tensor]:
    """A tensor with a gradient for every input."""
    generator = torch.Generator().manual_seed(7)
    return {
        step.name: torch.randn(
            topology.rows(step.space), *step.shape, generator=generator, dtype=torch.float64
        )
        .to(dtype)
        .requires_grad_()
        for step in program.inputs
        if step["kind"] != "gradient"
    }


def run_detached(program: Program, topology: Topology, inputs: dict) -> dict[str, torch.Tensor]:
    plain = {name: value.detach() for name, value in inputs.items()}
    return reference.run(program, topology, plain)


def sizes_of(graph: RelationalGraph) -> GraphSizes:
    return GraphSizes.of(Topology.of(graph))
