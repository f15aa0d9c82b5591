"""Transform-first or aggregate-first: a sum and a linear map change places where that is less work.

A linear map by a weight that is the same for all rows of a sum commutes with it.
"""

from __future__ import annotations

from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.step import Step
from shorthaul.relational.passes.rewriting import GraphSizes, Rewriter, rewrite
from shorthaul.relational.passes.scaling import (
    aggregate_cost,
    find_scaling,
    find_summed_product,
    keeps_width,
    scale_again,
    transform_cost,
)


def place_products(program: Program, sizes: GraphSizes) -> Program:
    """Sum the rows of a (target, relation) pair and multiply the sums, or multiply and sum.

    Rewrites, where pairs on the target's side are fewer, or `x` is narrower than `m`::

        m = linear x, W {way=relation}         : 64 over source pair
        a = expand m {way=source_pair}         : 64 over edge
        b = multiply a, alpha                  : 64 over edge           # anything that scales rows
        out = reduce b {kind=sum, way=target}  : 64 over target
        ->
        a = expand x {way=source}                   : 64 over edge
        b = multiply a, alpha                       : 64 over edge
        p = reduce b {kind=sum, way=target_pair}    : 64 over target pair
        m = linear p, W {way=relation}              : 64 over target pair
        out = reduce m {kind=sum, way=node}         : 64 over target

    and the other way round where it costs less, so that a mean of 1,433 features that is multiplied
    down to 16 becomes a mean of 16. With one weight for all edges, pairs are nodes.
    """

    def rule(rewriter: Rewriter, step: Step) -> str | None:
        if step.operation == "linear":
            return _transform_first(rewriter, step, sizes)
        return _aggregate_first(rewriter, step, sizes)

    return rewrite(program, rule)


def _aggregate_first(rewriter: Rewriter, step: Step, sizes: GraphSizes) -> str | None:
    found = find_summed_product(rewriter, step)
    if found is None:
        return None
    scaling, product, x, weight = found
    sums = Space.TARGET_PAIR if weight.space is Space.RELATION else Space.TARGET
    before = transform_cost(sizes, product.space, x, product)
    after = aggregate_cost(sizes, sums, x, product)
    if after.total(sizes.trains) >= before.total(sizes.trains):
        return None
    make = rewriter.make
    rows = rewriter.new[x.name]
    way = "source" if x.space is Space.NODE else "source_pair"
    if x.space is Space.SOURCE_PAIR and x.operation == "expand" and x["way"] == "node":
        rows, way = rewriter.new[x.operands[0]], "source"
    row = make.add("expand", rows, to=Space.EDGE, way=way)
    scaled = scale_again(rewriter, scaling, row)
    to = "target_pair" if sums is Space.TARGET_PAIR else "target"
    summed = make.add("reduce", scaled, kind="sum", way=to)
    whole = make.add(
        "linear",
        summed,
        rewriter.new[weight.name],
        name=product.name,
        way=product["way"],
        transposed=False,
    )
    if sums is Space.TARGET:
        return whole
    return make.add("reduce", whole, name=step.name, kind="sum", way="node")


def _transform_first(rewriter: Rewriter, step: Step, sizes: GraphSizes) -> str | None:
    x, weight = (rewriter.old(each) for each in step.operands)
    is_typed = weight.space is Space.RELATION
    sums = Space.TARGET_PAIR if is_typed else Space.TARGET
    if step["transposed"] or weight.space not in (Space.ONE, Space.RELATION):
        return None
    if x.space is not sums or not rewriter.is_used_once(x.name):
        return None
    found = find_scaling(rewriter, x.name, _is_spread_source)
    if found is None or not any(each.operation == "reduce" for each, _ in found[0]):
        return None
    scaling, spread = found
    rows = rewriter.old(spread.operands[0])
    space = Space.SOURCE_PAIR if is_typed else rows.space
    if not keeps_width(scaling, rows):
        return None
    before = aggregate_cost(sizes, sums, rows, step)
    after = transform_cost(sizes, space, rows, step)
    if after.total(sizes.trains) >= before.total(sizes.trains):
        return None
    make = rewriter.make
    way = spread["way"]
    at = rewriter.new[rows.name]
    if space is not rows.space:
        at, way = make.add("expand", at, to=space, way="node"), "source_pair"
    product = make.add("linear", at, rewriter.new[weight.name], way=step["way"], transposed=False)
    return scale_again(rewriter, scaling, make.add("expand", product, to=Space.EDGE, way=way))


def _is_spread_source(rewriter: Rewriter, step: Step) -> bool:
    return step.operation == "expand" and step["way"] in ("source", "source_pair")
