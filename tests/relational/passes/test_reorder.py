"""Weights first where the work shrinks, and never where it grows."""

from shorthaul.relational import NodeFeature, Weight, dot, linear
from shorthaul.relational.frontend.trace import trace
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.passes import run_passes
from shorthaul.relational.passes.compact import compact
from shorthaul.relational.passes.reorder import multiply_weights_first
from shorthaul.relational.passes.rewriting import GraphSizes
from tests.relational.passes.same_numbers import require_same_numbers

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


def test_the_pass_alone():
    before = compact(trace(project_twice, {"width": 4}), MANY)
    made = multiply_weights_first(before, MANY)
    assert made.text() == (
        "program project_twice\n"
        "  x        = input {kind=node}                                        : 4 over node\n"
        "  w        = input {kind=weight}                                      : 4 4 over relation\n"
        "  q        = input {kind=weight}                                      : 4 1 over one\n"
        "  expand   = expand x {to=source_pair, way=node}                      : 4 over source pair\n"
        "  linear_1 = linear w, q {transposed=False, way=all}                  : 4 1 over relation\n"
        "  m        = linear expand, linear_1 {transposed=False, way=relation} : 1 over source pair\n"
        "  expand_1 = expand m {to=edge, way=source_pair}                      : 1 over edge\n"
        "  return out = expand_1"
    )
    require_same_numbers(before, made)
