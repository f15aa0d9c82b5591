"""The fewest rows: a golden text, and what must stay per edge."""

from shorthaul.relational import EdgeFeature, NodeFeature, Weight, exp, linear
from shorthaul.relational.frontend.trace import trace
from shorthaul.relational.passes.compact import compact
from tests.relational.passes.same_numbers import require_same_numbers
from tests.relational.programs import attend, convolve, drop, record, sample_graph, sizes_of

SIZES = sizes_of(sample_graph())


def test_a_projection_has_one_row_per_pair():
    made = compact(record(convolve), SIZES)
    assert made.text() == (
        "program convolve\n"
        "  x        = input {kind=node}                                      : 5 over node\n"
        "  weight   = input {kind=weight}                                    : 5 3 over relation\n"
        "  expand   = expand x {to=source_pair, way=node}                    : 5 over source pair\n"
        "  linear   = linear expand, weight {transposed=False, way=relation} : 3 over source pair\n"
        "  count    = count {of=edge, way=target_pair}                       : scalar over target pair\n"
        "  expand_1 = expand linear {to=edge, way=source_pair}               : 3 over edge\n"
        "  expand_2 = expand count {to=edge, way=target_pair}                : scalar over edge\n"
        "  divide   = divide expand_1, expand_2                              : 3 over edge\n"
        "  out      = reduce divide {kind=sum, way=target}                   : 3 over target\n"
        "  return out"
    )


def test_what_depends_on_a_node_alone_is_computed_per_node():
    def program(g, x: NodeFeature("width"), w: Weight("width", 2)):
        for e in g.edges():
            e.m = exp(linear(e.source.x, w))
        for n in g.target_nodes():
            for e in n.incoming_edges():
                n.out += e.m
        return n.out

    made = compact(trace(program, {"width": 4}), SIZES)
    assert made["m"].space.value == "node"


def test_an_edges_own_features_stay_per_edge():
    def program(g, d: EdgeFeature(4), w: Weight("relation", 4, 2)):
        for e in g.edges():
            e.m = linear(e.d, w[e.relation])
        return e.m

    made = compact(trace(program, {}), SIZES)
    assert made["m"].space.value == "edge"


def test_every_edge_has_its_own_dropout():
    made = compact(record(drop), SIZES)
    mask = next(step for step in made.steps if step.operation == "keep")
    assert mask.space.value == "edge"


def test_the_same_numbers():
    for definition in (convolve, attend):
        before = record(definition)
        require_same_numbers(before, compact(before, SIZES))
