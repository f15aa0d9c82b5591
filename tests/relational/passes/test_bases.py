"""Rows by the bases, or by the weights that bases make."""

from shorthaul.relational import NodeFeature, Weight, linear
from shorthaul.relational.frontend.trace import trace
from shorthaul.relational.passes.bases import order_bases
from shorthaul.relational.passes.compact import compact
from shorthaul.relational.passes.simplify import canonicalize
from tests.relational.passes.same_numbers import require_same_numbers, sizes


def from_bases(
    g,
    x: NodeFeature("width"),
    basis: Weight("bases", "width*out"),
    comp: Weight("relation", "bases"),
    *,
    width,
    out,
):
    weight = linear(comp, basis).reshape(width, out)
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += linear(e.source.x, weight)
    return n.out


def _program(width=64, out=64, bases=2):
    widths = {"width": width, "out": out, "bases": bases}
    traced = trace(from_bases, widths, {"width": width, "out": out})
    return canonicalize(compact(traced, sizes()), sizes())


def test_rows_of_nodes_by_few_bases():
    made = order_bases(_program(), sizes())
    assert made.text() == (
        "program from_bases\n"
        "  x          = input {kind=node}                               : 64 over node\n"
        "  basis      = input {kind=weight}                             : 2 4096 over one\n"
        "  comp       = input {kind=weight}                             : 2 over relation\n"
        "  slice      = slice basis {axis=0, start=0, stop=1}           : 1 4096 over one\n"
        "  reshape_1  = reshape slice {shape=64 64}                     : 64 64 over one\n"
        "  slice_1    = slice basis {axis=0, start=1, stop=2}           : 1 4096 over one\n"
        "  reshape_2  = reshape slice_1 {shape=64 64}                   : 64 64 over one\n"
        "  bases      = concat reshape_1, reshape_2 {axis=1}            : 64 128 over one\n"
        "  by_basis   = linear x, bases {transposed=False, way=all}     : 128 over node\n"
        "  reshape_3  = reshape by_basis {shape=2 64}                   : 2 64 over node\n"
        "  expand_1   = expand reshape_3 {to=source_pair, way=node}     : 2 64 over source pair\n"
        "  reshape_4  = reshape comp {shape=2 1}                        : 2 1 over relation\n"
        "  expand_2   = expand reshape_4 {to=source_pair, way=relation} : 2 1 over source pair\n"
        "  multiply   = multiply expand_1, expand_2                     : 2 64 over source pair\n"
        "  sum        = sum multiply {axes=0}                           : 1 64 over source pair\n"
        "  linear_1   = reshape sum {shape=64}                          : 64 over source pair\n"
        "  expand_1_1 = expand linear_1 {to=edge, way=source_pair}      : 64 over edge\n"
        "  out        = reduce expand_1_1 {kind=sum, way=target}        : 64 over target\n"
        "  return out"
    )


def test_not_with_many_bases():
    before = _program(bases=12)
    assert order_bases(before, sizes()) == before


def test_not_where_nodes_have_few_pairs():
    before = _program()
    assert order_bases(before, sizes(source_pair=1_500)) == before


def test_the_same_numbers():
    for bases in (1, 3):
        before = _program(width=40, out=5, bases=bases)
        after = order_bases(before, sizes(node=10))
        assert after != before
        require_same_numbers(before, after)
