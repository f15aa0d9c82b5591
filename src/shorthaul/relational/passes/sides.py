"""Each relation's product on the side where it has fewer nodes."""

from __future__ import annotations

from shorthaul.relational.ir.pointwise import POINTWISE
from shorthaul.relational.ir.program import Program, needed_steps
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.step import Step
from shorthaul.relational.passes.costs import Cost
from shorthaul.relational.passes.rewriting import GraphSizes, Rewriter, rewrite
from shorthaul.relational.passes.scaling import (
    Scaling,
    aggregate_cost,
    find_summed_product,
    scale_again,
    transform_cost,
)

LEAST_GAIN = 1.1  # what the second pass over targets must bring
# To list the edges of both sides takes longer than one call gains. A graph with fewer edges may be a
# mini-batch, which is called once, and one with fewer targets than nodes is.
LEAST_EDGES = 50_000


def choose_sides(program: Program, sizes: GraphSizes) -> Program:
    """Multiply and sum for relations with few sources, sum and multiply for those with few targets.

    Rewrites, where it is less work than either order for all relations::

        m = linear x, W {way=relation}         : 64 over source pair
        a = expand m {way=source_pair}         : 64 over edge
        b = multiply a, share                  : 64 over edge           # anything that scales rows
        out = reduce b {kind=sum, way=target}  : 64 over target
        ->
        m = linear x, W {way=relation}             : 64 over source side pair
        a = expand m {way=side_pair}               : 64 over source side edge
        b = multiply a, share                      : 64 over source side edge
        one = reduce b {kind=sum, way=target}      : 64 over target
        c = expand x {way=source}                  : 64 over target side edge
        d = multiply c, share                      : 64 over target side edge
        p = reduce d {kind=sum, way=side_pair}     : 64 over target side pair
        n = linear p, W {way=relation}             : 64 over target side pair
        other = reduce n {kind=sum, way=node}      : 64 over target
        out = add one, other                       : 64 over target

    Mini-batches stay as they are: see `LEAST_EDGES`. So does a scaling that itself comes from a sum over
    edges (attention): its edges are swept together.
    """

    def rule(rewriter: Rewriter, step: Step) -> str | None:
        found = find_summed_product(rewriter, step)
        if found is None:
            return None
        scaling, product, x, weight = found
        if weight.space is not Space.RELATION or (x.operation, x.get("way")) != ("expand", "node"):
            return None
        if not _is_less_work(sizes, x, product) or not _can_be_divided(rewriter, scaling):
            return None
        return _divide(rewriter, step, scaling, product, rewriter.old(x.operands[0]))

    return rewrite(program, rule)


def _is_less_work(sizes: GraphSizes, x: Step, product: Step) -> bool:
    if sizes[Space.EDGE] < LEAST_EDGES or sizes[Space.TARGET] < sizes[Space.NODE]:
        return False
    divided = Cost(
        (sizes[Space.SOURCE_SIDE_PAIR] + sizes[Space.TARGET_SIDE_PAIR])
        * x.size
        * product.shape[-1],
        (sizes[Space.SOURCE_SIDE_PAIR] + sizes[Space.SOURCE_SIDE_EDGE]) * product.size
        + (sizes[Space.TARGET_SIDE_PAIR] + sizes[Space.TARGET_SIDE_EDGE]) * x.size
        + 2 * (sizes[Space.TARGET_SIDE_PAIR] + sizes[Space.TARGET]) * product.size,
    )
    whole = (
        transform_cost(sizes, Space.SOURCE_PAIR, x, product),
        aggregate_cost(sizes, Space.TARGET_PAIR, x, product),
    )
    least = min(each.total(sizes.trains) for each in whole)
    return divided.total(sizes.trains) * LEAST_GAIN < least


def _can_be_divided(rewriter: Rewriter, scaling: Scaling) -> bool:
    """Whether every factor is read from memory, or made of such, for each edge alone."""
    waiting = [
        each
        for step, number in scaling
        for position, each in enumerate(step.operands)
        if position != number
    ]
    while waiting:
        step = rewriter.old(waiting.pop())
        if step.operation in POINTWISE:
            waiting.extend(step.operands)
        elif step.operation == "expand":
            before = needed_steps(rewriter.program, step.operands)
            if any(each.operation == "reduce" for each in before):
                return False
        elif step.operation != "input":
            return False
    return True


def _divide(rewriter: Rewriter, step: Step, scaling: Scaling, product: Step, nodes: Step) -> str:
    make = rewriter.make
    x, weight = rewriter.new[nodes.name], rewriter.new[product.operands[1]]

    def multiply(rows: str) -> str:
        return make.add(
            "linear", rows, weight, name=product.name, way=product["way"], transposed=False
        )

    def scale(rows: str) -> str:
        space = make.steps[rows].space
        return scale_again(rewriter, scaling, rows, lambda each: _on_side(rewriter, each, space))

    first = multiply(make.add("expand", x, to=Space.SOURCE_SIDE_PAIR, way="node"))
    spread = make.add("expand", first, to=Space.SOURCE_SIDE_EDGE, way="side_pair")
    one = make.add(
        "reduce", scale(spread), name=f"{step.name}_of_sources", kind="sum", way="target"
    )
    gathered = make.add("expand", x, to=Space.TARGET_SIDE_EDGE, way="source")
    summed = make.add("reduce", scale(gathered), kind="sum", way="side_pair")
    other = make.add(
        "reduce", multiply(summed), name=f"{step.name}_of_targets", kind="sum", way="node"
    )
    return make.add("add", one, other, name=step.name, line=step.line)


def _on_side(rewriter: Rewriter, value: str, edges: Space) -> str:
    """The value of an edge, for the edges of one side."""
    step, make = rewriter.old(value), rewriter.make
    if step.operation == "expand":
        return make.add("expand", rewriter.new[step.operands[0]], to=edges, way=step["way"])
    if step.operation == "input":
        return make.add("expand", rewriter.new[value], to=edges, way="edge")
    operands = [_on_side(rewriter, each, edges) for each in step.operands]
    return make.add(
        step.operation, *operands, name=step.name, line=step.line, **dict(step.attributes)
    )
