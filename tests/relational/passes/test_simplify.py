"""One form, and products of parts in place of parts put together."""

from shorthaul.relational import NodeFeature, Weight, concat, dot, linear
from shorthaul.relational.frontend.trace import trace
from shorthaul.relational.passes.simplify import canonicalize, remove_concatenations
from tests.relational.passes.same_numbers import require_same_numbers
from tests.relational.programs import sample_graph, sizes_of

SIZES = sizes_of(sample_graph())


def test_what_changes_nothing_goes():
    def program(g, x: NodeFeature("width")):
        for n in g.nodes():
            n.y = -n.x.reshape(4, 1).reshape(4) * 1.0
            n.y = -n.y
            n.out = n.x + -n.y
        return n.out

    made = canonicalize(trace(program, {"width": 4}), SIZES)
    assert [step.text() for step in made.steps[1:]] == ["out = subtract x, x : 4 over node"]


def test_a_concatenation_is_multiplied_part_by_part():
    def program(g, x: NodeFeature("width"), w: Weight("relation", 8, 2)):
        for e in g.edges():
            e.m = linear(concat(e.source.x, e.target.x), w[e.relation])
        return e.m

    made = remove_concatenations(trace(program, {"width": 4}), SIZES)
    assert [step.operation for step in made.steps[2:]] == [
        "expand",
        "restrict",
        "expand",
        "slice",
        "linear",
        "slice",
        "linear",
        "add",
    ]


def test_so_is_its_inner_product():
    def program(g, x: NodeFeature("width"), a: Weight("relation", 8)):
        for e in g.edges():
            e.m = dot(concat(e.source.x, e.target.x), a[e.relation])
        return e.m

    made = remove_concatenations(trace(program, {"width": 4}), SIZES)
    assert "concat" not in {step.operation for step in made.steps}


def test_many_elements_are_divided_once():
    def program(g, x: NodeFeature("width"), y: NodeFeature(1)):
        for n in g.nodes():
            n.out = n.x / n.y
        return n.out

    before = trace(program, {"width": 4})
    made = canonicalize(before, SIZES)
    assert [step.text() for step in made.steps[2:]] == [
        "reciprocal = reciprocal y : 1 over node",
        "out = multiply x, reciprocal : 4 over node",
    ]
    require_same_numbers(before, made)


def test_concatenations_apart_have_the_same_numbers():
    def program(g, x: NodeFeature("width"), w: Weight("relation", 8, 2), a: Weight("relation", 8)):
        for e in g.edges():
            both = concat(e.source.x, e.target.x)
            e.m = linear(both, w[e.relation]) * dot(both, a[e.relation])
        return e.m

    before = trace(program, {"width": 4})
    require_same_numbers(before, remove_concatenations(before, SIZES))
