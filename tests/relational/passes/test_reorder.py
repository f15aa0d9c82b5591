"""Weights first where the work shrinks, and never where it grows."""

from shorthaul.relational import NodeFeature, Weight, dot, linear
from shorthaul.relational.passes import run_passes
from shorthaul.relational.passes.reorder import multiply_weights_first
from shorthaul.relational.passes.rewriting import GraphSizes
from shorthaul.relational.spaces import Space
from shorthaul.relational.trace import trace

MANY = GraphSizes({space: 10 if space.is_small else 10_000 for space in Space})
FEW = GraphSizes({space: 10 if space.is_small else 9 for space in Space})


def _folded(program, sizes, **widths):
    *_, (_, made) = run_passes(trace(program, widths), sizes)
    return [step for step in made.steps if step.operation == "linear" and step.space.is_small]


def project_twice(
    g, x: NodeFeature("width"), w: Weight("relation", "width", "width"), q: Weight("width", 1)
):
    for e in g.edges():
        e.m = linear(linear(e.source.x, w[e.relation]), q)
    return e.m


def project_and_use(
    g, x: NodeFeature("width"), w: Weight("relation", "width", "width"), q: Weight("width", 1)
):
    for e in g.edges():
        e.z = linear(e.source.x, w[e.relation])
        e.m = linear(e.z, q) * e.z
    return e.m


def project_and_dot(
    g,
    x: NodeFeature("width"),
    w: Weight("relation", "width", "width"),
    a: Weight("relation", "width"),
):
    for e in g.edges():
        e.m = dot(linear(e.target.x, w[e.relation]), a[e.relation])
    return e.m


def test_a_projection_that_only_feeds_another_is_folded():
    (fold,) = _folded(project_twice, MANY, width=64)
    assert (fold.shape, fold.space) == ((64, 1), Space.RELATION)


def test_not_where_the_fold_costs_more_than_it_saves():
    assert _folded(project_twice, FEW, width=64) == []


def test_not_where_the_projection_is_needed_anyway():
    assert _folded(project_and_use, MANY, width=64) == []


def test_an_inner_product_with_a_weight_is_folded_too():
    program = trace(project_and_dot, {"width": 64})
    *_, (_, made) = run_passes(program, MANY)
    products = [step for step in made.steps if step.operation == "linear"]
    assert [step.shape for step in products] == [(1,)]


def test_the_pass_alone_keeps_outputs():
    program = trace(project_twice, {"width": 64})
    assert multiply_weights_first(program, MANY).outputs[0][0] == "out"
