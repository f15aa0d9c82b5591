"""Transform-first or aggregate-first: a sum and a linear map change places where that is less work.

A linear map by a weight that is the same for all rows of a sum commutes with it. Between the two there
may be steps that only scale rows (a mean's count, attention): the *scaling* from the sum's side down to
the rows, which this module finds and makes again around other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from shorthaul.relational.ir import Program, Shape, Step
from shorthaul.relational.passes.costs import Cost
from shorthaul.relational.passes.rewriting import GraphSizes, Rewriter, rewrite
from shorthaul.relational.spaces import Space

Scaling = list[tuple[Step, int]]  # steps from the outside in, and which operand goes on


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
        if step.operation == "reduce":
            return _aggregate_first(rewriter, step, sizes)
        if step.operation == "linear":
            return _transform_first(rewriter, step, sizes)
        return None

    return rewrite(program, rule)


def _aggregate_first(rewriter: Rewriter, step: Step, sizes: GraphSizes) -> str | None:
    if step["kind"] != "sum" or step["way"] != "target":
        return None
    found = _find_scaling(rewriter, step.operands[0], _is_spread_product)
    if found is None:
        return None
    scaling, spread = found
    product = rewriter.old(spread.operands[0])
    x, weight = (rewriter.old(each) for each in product.operands)
    sums = Space.TARGET_PAIR if weight.space is Space.RELATION else Space.TARGET
    if not rewriter.is_used_once(product.name) or not _keeps_width(scaling, product):
        return None
    before = _transform_cost(sizes, product.space, x, product)
    after = _aggregate_cost(sizes, sums, x, product)
    if after.total(sizes.trains) >= before.total(sizes.trains):
        return None
    make = rewriter.make
    rows = rewriter.new[x.name]
    way = "source" if x.space is Space.NODE else "source_pair"
    if x.space is Space.SOURCE_PAIR and x.operation == "expand" and x["way"] == "node":
        rows, way = rewriter.new[x.operands[0]], "source"
    row = make.add("expand", rows, to=Space.EDGE, way=way)
    scaled = _scale_again(rewriter, scaling, row)
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
    found = _find_scaling(rewriter, x.name, _is_spread_source)
    if found is None or not any(each.operation == "reduce" for each, _ in found[0]):
        return None
    scaling, spread = found
    rows = rewriter.old(spread.operands[0])
    space = Space.SOURCE_PAIR if is_typed else rows.space
    if not _keeps_width(scaling, rows):
        return None
    before = _aggregate_cost(sizes, sums, rows, step)
    after = _transform_cost(sizes, space, rows, step)
    if after.total(sizes.trains) >= before.total(sizes.trains):
        return None
    make = rewriter.make
    way = spread["way"]
    at = rewriter.new[rows.name]
    if space is not rows.space:
        at, way = make.add("expand", at, to=space, way="node"), "source_pair"
    product = make.add("linear", at, rewriter.new[weight.name], way=step["way"], transposed=False)
    return _scale_again(rewriter, scaling, make.add("expand", product, to=Space.EDGE, way=way))


def _is_spread_product(rewriter: Rewriter, step: Step) -> bool:
    """A product of a relation's weight per source pair, or of the one weight per node, on its edges."""
    if step.operation != "expand" or step["way"] not in ("source", "source_pair"):
        return False
    product = rewriter.old(step.operands[0])
    if product.operation != "linear" or product["transposed"]:
        return False
    weight = rewriter.old(product.operands[1])
    return (product.space, weight.space) in (
        (Space.SOURCE_PAIR, Space.RELATION),
        (Space.SOURCE_PAIR, Space.ONE),
        (Space.NODE, Space.ONE),
    )


def _is_spread_source(rewriter: Rewriter, step: Step) -> bool:
    return step.operation == "expand" and step["way"] in ("source", "source_pair")


def _find_scaling(
    rewriter: Rewriter, name: str, is_end: Callable[[Rewriter, Step], bool]
) -> tuple[Scaling, Step] | None:
    """The steps from `name` down to the rows at the end, if they only scale and sum rows."""
    step = rewriter.old(name)
    if not rewriter.is_used_once(name):
        return None
    if is_end(rewriter, step):
        return [], step
    for number in _carriers(rewriter, step):
        found = _find_scaling(rewriter, step.operands[number], is_end)
        if found is not None:
            return [(step, number), *found[0]], found[1]
    return None


def _carriers(rewriter: Rewriter, step: Step) -> tuple[int, ...]:
    """The operands in which a step is linear, row by row and the same for all their elements."""
    operands = [rewriter.old(each) for each in step.operands]
    if step.operation in ("negative", "scale", "reshape"):
        return (0,)
    if step.operation == "reduce" and operands[0].space is Space.EDGE:
        return (0,) if step["kind"] == "sum" and step["way"] in ("target", "target_pair") else ()
    if step.operation in ("multiply", "divide"):
        sides = (0, 1) if step.operation == "multiply" else (0,)
        return tuple(s for s in sides if prod(operands[1 - s].shape[-1:]) == 1)
    return ()


def _keeps_width(scaling: Scaling, rows: Step) -> bool:
    """Whether rows keep their size and their last dimension, reshaped at most by dimensions of 1."""
    width = rows.shape[-1]
    return all(
        step.size == rows.size
        and step.shape[-1:] == (width,)
        and (step.operation != "reshape" or rows.size == width > 1)
        for step, _ in scaling
    )


def _scale_again(rewriter: Rewriter, scaling: Scaling, row: str) -> str:
    """The scaling around other rows, from the inside out."""
    make = rewriter.make
    for step, number in reversed(scaling):
        operands = [rewriter.new[each] for each in step.operands]
        operands[number] = row
        attributes = dict(step.attributes)
        if step.operation == "reshape":
            attributes["shape"] = _with_width(step.shape, make.steps[row].shape[-1])
        row = make.add(step.operation, *operands, name=step.name, line=step.line, **attributes)
    return row


def _with_width(shape: Shape, width: int) -> Shape:
    return (*shape[:-1], width)


def _transform_cost(sizes: GraphSizes, space: Space, x: Step, product: Step) -> Cost:
    """Rows of `space` multiplied, written, and read by every edge."""
    rows, edges = sizes[space], sizes[Space.EDGE]
    return Cost(rows * x.size * product.shape[-1], (rows + edges) * product.size)


def _aggregate_cost(sizes: GraphSizes, sums: Space, x: Step, product: Step) -> Cost:
    """Rows read by every edge, their sums written and multiplied, and pairs added up."""
    rows, edges = sizes[sums], sizes[Space.EDGE]
    pairs = 2 * rows * product.size if sums is Space.TARGET_PAIR else 0
    return Cost(rows * x.size * product.shape[-1], (rows + edges) * x.size + pairs)
