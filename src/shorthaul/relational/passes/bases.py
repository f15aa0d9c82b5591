"""The order of basis products: weights that are combinations of a few bases."""

from __future__ import annotations

from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.step import Step
from shorthaul.relational.passes.costs import Cost
from shorthaul.relational.passes.rewriting import GraphSizes, Rewriter, rewrite

MOST_BASES = 16  # with more, nodes x bases are not fewer rows than pairs


def order_bases(program: Program, sizes: GraphSizes) -> Program:
    """Multiply rows by the bases and combine the products, or combine the bases first.

    Rewrites, where a node has many pairs::

        w = linear c, V {way=all}          : 4096 over relation      # relations * bases * 64 * 64
        W = reshape w {shape=64 64}        : 64 64 over relation
        s = expand x {way=node}            : 64 over source pair
        m = linear s, W {way=relation}     : 64 over source pair     # pairs * 64 * 64
        ->
        v = the bases side by side         : 64 128 over one
        y = linear x, v {way=all}          : 128 over node           # nodes * 2 * 64 * 64
        m = sum over b of c[b] y[b]        : 64 over source pair     # pairs * 2 * 64
    """

    def rule(rewriter: Rewriter, step: Step) -> str | None:
        found = _match(rewriter, step)
        if found is None:
            return None
        combined, rows = found
        if not _is_cheaper(rewriter, sizes, step, combined, rows):
            return None
        return _multiply_by_bases(rewriter, step, combined, rows)

    return rewrite(program, rule)


def _match(rewriter: Rewriter, step: Step) -> tuple[Step, Step] | None:
    """The step that combines the bases, and the rows of nodes that are multiplied by the result."""
    if step.operation != "linear" or step["transposed"] or step["way"] != "relation":
        return None
    spread, weight = (rewriter.old(each) for each in step.operands)
    if weight.operation != "reshape" or len(weight.shape) != 2:
        return None
    if spread.operation != "expand" or spread["way"] != "node" or len(spread.shape) != 1:
        return None
    combined = rewriter.old(weight.operands[0])
    if combined.operation != "linear" or combined["transposed"] or combined["way"] != "all":
        return None
    bases = rewriter.old(combined.operands[1])
    is_matrix = len(bases.shape) == 2 and bases.space is Space.ONE
    if not is_matrix or bases.shape[0] > MOST_BASES or len(combined.shape) != 1:
        return None
    if not (rewriter.is_used_once(weight.name) and rewriter.is_used_once(combined.name)):
        return None
    return combined, rewriter.old(spread.operands[0])


def _is_cheaper(
    rewriter: Rewriter, sizes: GraphSizes, step: Step, combined: Step, rows: Step
) -> bool:
    bases = rewriter.old(combined.operands[1]).shape[0]
    (depth,), (width,) = rows.shape, step.shape
    pairs, nodes = sizes[step.space], sizes[rows.space]
    together = Cost((sizes[Space.RELATION] * bases + pairs) * depth * width, pairs * width)
    apart = Cost(nodes * bases * depth * width, (nodes + pairs) * bases * width + pairs * width)
    return apart.total(sizes.trains) < together.total(sizes.trains)


def _multiply_by_bases(rewriter: Rewriter, step: Step, combined: Step, rows: Step) -> str:
    make = rewriter.make
    coefficients, bases = (make.steps[rewriter.new[each]] for each in combined.operands)
    (depth,), (width,) = rows.shape, step.shape
    count = bases.shape[0]
    parts = [
        make.add(
            "reshape",
            make.add("slice", bases.name, axis=0, start=number, stop=number + 1),
            shape=(depth, width),
        )
        for number in range(count)
    ]
    side_by_side = make.add("concat", *parts, name="bases", axis=1) if count > 1 else parts[0]
    products = make.add(
        "linear",
        rewriter.new[rows.name],
        side_by_side,
        name="by_basis",
        way="all",
        transposed=False,
    )
    by_basis = make.add("reshape", products, shape=(count, width))
    each = make.add("expand", by_basis, to=step.space, way="node")
    shares = make.add("reshape", coefficients.name, shape=(count, 1))
    scaled = make.add("multiply", each, make.add("expand", shares, to=step.space, way="relation"))
    summed = make.add("sum", scaled, axes=(0,))
    return make.add("reshape", summed, name=step.name, shape=(width,))
