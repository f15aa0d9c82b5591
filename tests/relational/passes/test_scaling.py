"""What may lie between a product and a sum, and what the two cost in either order."""

from shorthaul.relational.ir.program import Builder, Program
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.passes.rewriting import Rewriter
from shorthaul.relational.passes.scaling import (
    aggregate_cost,
    find_scaling,
    is_spread_product,
    keeps_width,
    scale_again,
    transform_cost,
)
from tests.relational.passes.same_numbers import sizes


def _program(between: str) -> Program:
    """A sum of products of which `between` is made on the edges."""
    make = Builder("sums")
    x = make.input("x", (8,), Space.NODE, "node")
    weight = make.input("weight", (8, 4), Space.RELATION, "weight")
    share = make.input("share", (1,), Space.EDGE, "edge")
    rows = make.add("expand", x, to=Space.SOURCE_PAIR, way="node")
    product = make.add("linear", rows, weight, name="product", way="relation", transposed=False)
    value = make.add("expand", product, to=Space.EDGE, way="source_pair")
    if between in ("multiply", "divide"):
        value = make.add(between, value, share)
    elif between == "square":
        value = make.add("multiply", value, value)
    elif between:
        value = make.add(between, value)
    out = make.add("reduce", value, name="out", kind="sum", way="target")
    return make.build([("out", out)])


def _find(between: str):
    rewriter = Rewriter(_program(between))
    return find_scaling(rewriter, rewriter.old("out").operands[0], is_spread_product)


def test_numbers_per_row_scale():
    for between in ("", "multiply", "divide", "negative"):
        found = _find(between)
        assert found is not None, between
        assert [step.operation for step, _ in found[0]] == ([between] if between else [])


def test_what_is_not_linear_in_the_row_does_not():
    for between in ("relu", "exp", "square"):
        assert _find(between) is None, between


def test_a_scaling_is_made_again_around_other_rows():
    rewriter = Rewriter(_program("multiply"))
    for step in rewriter.program.steps:
        rewriter.new[step.name] = rewriter.again(step)
    scaling, spread = find_scaling(rewriter, rewriter.old("out").operands[0], is_spread_product)
    assert keeps_width(scaling, rewriter.old(spread.operands[0]))
    row = rewriter.make.add("expand", "x", to=Space.EDGE, way="source")
    made = rewriter.make.steps[scale_again(rewriter, scaling, row)]
    assert (made.operation, made.operands, made.shape) == ("multiply", (row, "share"), (8,))


def test_costs_by_hand():
    program = _program("")
    x, product = program["x"], program["product"]
    first = transform_cost(sizes(), Space.SOURCE_PAIR, x, product)
    assert first.multiply_adds == 9_000 * 8 * 4
    assert first.elements == (9_000 + 10_000) * 4
    later = aggregate_cost(sizes(target_pair=100), Space.TARGET_PAIR, x, product)
    assert later.multiply_adds == 100 * 8 * 4
    assert later.elements == (100 + 10_000) * 8 + 2 * 100 * 4
