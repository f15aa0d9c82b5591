"""Scaled rows are not written down per pair."""

from shorthaul.relational import NodeFeature, layer
from shorthaul.relational.frontend.trace import trace
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.passes.compact import compact
from shorthaul.relational.passes.differentiate import differentiate
from shorthaul.relational.passes.simplify import canonicalize
from shorthaul.relational.passes.spread import scale_on_edges
from tests.relational.passes.same_numbers import require_same_numbers, sizes


@layer
def averages(g, x: NodeFeature("width")):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += e.target.x / e.count(within="relation")
    return n.out


def _program(width=16):
    return compact(canonicalize(trace(averages.function, {"width": width}), sizes()), sizes())


def test_a_row_is_scaled_where_it_is_added():
    made = scale_on_edges(_program(), sizes())
    assert made.text() == (
        "program averages\n"
        "  x          = input {kind=node}                            : 16 over node\n"
        "  restrict   = restrict x                                   : 16 over target\n"
        "  count      = count {of=edge, way=target_pair}             : scalar over target pair\n"
        "  reciprocal = reciprocal count                             : scalar over target pair\n"
        "  expand_1   = expand restrict {to=edge, way=target}        : 16 over edge\n"
        "  expand_2   = expand reciprocal {to=edge, way=target_pair} : scalar over edge\n"
        "  divide_1   = multiply expand_1, expand_2                  : 16 over edge\n"
        "  out        = reduce divide_1 {kind=sum, way=target}       : 16 over target\n"
        "  return out"
    )


def test_narrow_rows_are_scaled_per_pair():
    before = _program(width=4)
    assert scale_on_edges(before, sizes()) == before


def test_it_waits_for_the_gradients():
    forward = _program()
    assert scale_on_edges(forward, sizes(trains=True)) == forward
    whole = compact(differentiate(forward, ["x"]), sizes())
    made = scale_on_edges(whole, sizes(trains=True))
    spread = [made[s.operands[0]] for s in made.steps if s.operation == "expand"]
    assert {s.space for s in spread if s.size == 16} == {Space.TARGET}


def test_the_same_numbers():
    before = _program()
    require_same_numbers(before, scale_on_edges(before, sizes()))
