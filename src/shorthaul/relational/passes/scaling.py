"""Products and sums with nothing but a scaling between them, and what they cost in either order.

Between a linear map and a sum over edges there may be steps that only scale rows (a mean's count,
attention): the *scaling* from the sum's side down to the rows, which can be made again around other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.step import Shape, Step
from shorthaul.relational.passes.costs import Cost
from shorthaul.relational.passes.rewriting import GraphSizes, Rewriter

Scaling = list[tuple[Step, int]]  # steps from the outside in, and which operand goes on


class SummedProduct(NamedTuple):
    """A product that is spread to edges, scaled, and summed for every target, and used nowhere else."""

    scaling: Scaling
    product: Step
    x: Step
    weight: Step


def find_summed_product(rewriter: Rewriter, step: Step) -> SummedProduct | None:
    """What `step` sums, if it is such a sum and its rows keep their width on the way."""
    if step.operation != "reduce" or (step["kind"], step["way"]) != ("sum", "target"):
        return None
    found = find_scaling(rewriter, step.operands[0], is_spread_product)
    if found is None:
        return None
    scaling, spread = found
    product = rewriter.old(spread.operands[0])
    if not rewriter.is_used_once(product.name) or not keeps_width(scaling, product):
        return None
    x, weight = (rewriter.old(each) for each in product.operands)
    return SummedProduct(scaling, product, x, weight)


def find_scaling(
    rewriter: Rewriter, name: str, is_end: Callable[[Rewriter, Step], bool]
) -> tuple[Scaling, Step] | None:
    """The steps from `name` down to the rows at the end, if they only scale and sum rows."""
    step = rewriter.old(name)
    if not rewriter.is_used_once(name):
        return None
    if is_end(rewriter, step):
        return [], step
    for number in _carriers(rewriter, step):
        found = find_scaling(rewriter, step.operands[number], is_end)
        if found is not None:
            return [(step, number), *found[0]], found[1]
    return None


def is_spread_product(rewriter: Rewriter, step: Step) -> bool:
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


def keeps_width(scaling: Scaling, rows: Step) -> bool:
    """Whether rows keep their size and their last dimension, reshaped at most by dimensions of 1."""
    width = rows.shape[-1]
    return all(
        step.size == rows.size
        and step.shape[-1:] == (width,)
        and (step.operation != "reshape" or rows.size == width > 1)
        for step, _ in scaling
    )


def scale_again(
    rewriter: Rewriter, scaling: Scaling, row: str, at: Callable[[str], str] | None = None
) -> str:
    """The scaling around other rows, from the inside out; `at` says what the factors have become."""
    make = rewriter.make
    for step, number in reversed(scaling):
        factors = (each for position, each in enumerate(step.operands) if position != number)
        operands = [rewriter.new[each] if at is None else at(each) for each in factors]
        operands.insert(number, row)
        attributes = dict(step.attributes)
        if step.operation == "reshape":
            attributes["shape"] = _with_width(step.shape, make.steps[row].shape[-1])
        row = make.add(step.operation, *operands, name=step.name, line=step.line, **attributes)
    return row


def _with_width(shape: Shape, width: int) -> Shape:
    return (*shape[:-1], width)


def transform_cost(sizes: GraphSizes, space: Space, x: Step, product: Step) -> Cost:
    """Rows of `space` multiplied, written, and read by every edge."""
    rows, edges = sizes[space], sizes[Space.EDGE]
    return Cost(rows * x.size * product.shape[-1], (rows + edges) * product.size)


def aggregate_cost(sizes: GraphSizes, sums: Space, x: Step, product: Step) -> Cost:
    """Rows read by every edge, their sums written and multiplied, and pairs added up."""
    rows, edges = sizes[sums], sizes[Space.EDGE]
    pairs = 2 * rows * product.size if sums is Space.TARGET_PAIR else 0
    return Cost(rows * x.size * product.shape[-1], (rows + edges) * x.size + pairs)
