"""Sum and multiply, or multiply and sum: whichever is less work, with the same numbers."""

import pytest

from shorthaul.relational.frontend.trace import trace
from shorthaul.relational.layers.homogeneous.sage import sage
from shorthaul.relational.passes.aggregation import place_products
from shorthaul.relational.passes.compact import compact
from shorthaul.relational.passes.simplify import canonicalize
from tests.relational.passes.same_numbers import require_same_numbers, sizes
from tests.relational.programs import attend, convolve, record, transform

FEW_TARGETS = sizes(target_pair=1_500)


def _compacted(definition, widths=None, options=None, absent=()):
    program = (
        record(definition)
        if widths is None
        else trace(definition.function, widths, options or {}, absent)
    )
    return canonicalize(compact(program, sizes()), sizes())


def _products(program):
    return [(s.space.value, s.shape) for s in program.steps if s.operation == "linear"]


def test_sums_of_pairs_are_multiplied_where_target_pairs_are_few():
    made = place_products(_compacted(convolve), FEW_TARGETS)
    assert made.text() == (
        "program convolve\n"
        "  x          = input {kind=node}                                      : 5 over node\n"
        "  weight     = input {kind=weight}                                    : 5 3 over relation\n"
        "  count      = count {of=edge, way=target_pair}                       : scalar over target pair\n"
        "  expand_2   = expand count {to=edge, way=target_pair}                : scalar over edge\n"
        "  reciprocal = reciprocal expand_2                                    : scalar over edge\n"
        "  expand_3   = expand x {to=edge, way=source}                         : 5 over edge\n"
        "  divide_1   = multiply expand_3, reciprocal                          : 5 over edge\n"
        "  reduce     = reduce divide_1 {kind=sum, way=target_pair}            : 5 over target pair\n"
        "  linear_1   = linear reduce, weight {transposed=False, way=relation} : 3 over target pair\n"
        "  out        = reduce linear_1 {kind=sum, way=node}                   : 3 over target\n"
        "  return out"
    )


def test_not_where_pairs_are_as_many_on_both_sides():
    before = _compacted(convolve)
    assert place_products(before, sizes()) == before


def test_not_where_the_product_is_needed_on_the_edges_anyway():
    before = _compacted(attend)  # attention reads the projected values too
    assert place_products(before, FEW_TARGETS) == before


def test_not_where_values_are_kept_per_edge():
    before = record(convolve)  # as without `compact`
    assert place_products(before, FEW_TARGETS) == before


def test_a_mean_of_wide_rows_that_become_narrow_is_taken_of_narrow_rows():
    before = _compacted(sage, {"width": 64, "heard": 64, "out": 8}, {"aggregations": ["mean"]})
    made = place_products(before, sizes())
    assert _products(before)[0] == ("target", (8,))
    assert _products(made)[0] == ("node", (8,))
    require_same_numbers(before, made)


def test_a_block_with_few_targets_is_summed_first():
    before = _compacted(sage, {"width": 64, "heard": 64, "out": 8}, {"aggregations": ["mean"]})
    few = sizes(target=10, edge=100)
    assert place_products(before, few) == before


def test_a_maximum_stays_where_it_is():
    before = _compacted(sage, {"width": 64, "heard": 64, "out": 8}, {"aggregations": ["max"]})
    assert place_products(before, sizes()) == before


@pytest.mark.parametrize("definition", [convolve, transform])
@pytest.mark.parametrize("trains", [False, True])
def test_the_same_numbers(definition, trains):
    before = _compacted(definition)
    chosen = sizes(trains, target_pair=1_500)
    require_same_numbers(before, place_products(before, chosen))


def test_going_back_gives_the_first_order_again():
    there = place_products(_compacted(convolve), FEW_TARGETS)
    back = place_products(there, sizes(source_pair=1_500))
    assert _products(back) == [("source pair", (3,))]
    require_same_numbers(there, back)
