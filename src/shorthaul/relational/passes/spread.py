"""Rows that are only scaled per pair: the scaling goes to the edges, where it is free."""

from __future__ import annotations

from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.spaces import EDGE_WAYS, Space
from shorthaul.relational.ir.step import Step
from shorthaul.relational.passes.rewriting import GraphSizes, Rewriter, rewrite

CHEAP = ("add", "subtract", "multiply", "negative", "scale", "shift")
WIDE = 16  # narrower values are read faster than they are made again


def scale_on_edges(program: Program, sizes: GraphSizes) -> Program:
    """Do not write down a wide row per pair that is one row of a node and a number.

    Rewrites::

        d = expand dout {way=node}         : 64 over target pair   # gathered from one row per target
        m = multiply d, share              : 64 over target pair   # a row per pair, written and read
        e = expand m {way=target_pair}     : 64 over edge
        ->
        d = expand dout {way=target}       : 64 over edge
        s = expand share {way=target_pair} : scalar over edge
        e = multiply d, s                  : 64 over edge          # no memory

    The rows of nodes are fewer than those of pairs and stay in the cache. Where gradients are wanted,
    it waits until they are there: on pairs they are added up first.
    """
    if sizes.trains and not any(step["kind"] == "gradient" for step in program.inputs):
        return program

    def rule(rewriter: Rewriter, step: Step) -> str | None:
        if step.operation != "expand" or step.space is not Space.EDGE:
            return None
        scaled = rewriter.old(step.operands[0])
        if not _is_scaled_row(rewriter, scaled):
            return None
        operands = [_on_edges(rewriter, each, step["way"]) for each in scaled.operands]
        attributes = dict(scaled.attributes)
        return rewriter.make.add(
            scaled.operation, *operands, name=scaled.name, line=scaled.line, **attributes
        )

    return rewrite(program, rule)


def _is_scaled_row(rewriter: Rewriter, step: Step) -> bool:
    """Whether the value is one wide row of a pair and numbers, and edges alone read it."""
    if step.space not in (Space.SOURCE_PAIR, Space.TARGET_PAIR) or step.operation not in CHEAP:
        return False
    wide = [each for each in step.operands if rewriter.old(each).size * 4 > step.size]
    readers = rewriter.users[step.name]
    return (
        step.size >= WIDE
        and len(wide) == 1
        and step.name not in rewriter.outputs
        and all(each.operation == "expand" and each.space is Space.EDGE for each in readers)
    )


def _on_edges(rewriter: Rewriter, operand: str, way: str) -> str:
    """The operand's value on the edges, read from as few rows as it has."""
    step = rewriter.old(operand)
    if step.operation == "expand":
        coarse = rewriter.old(step.operands[0])
        if coarse.space in EDGE_WAYS:
            operand, way = coarse.name, EDGE_WAYS[coarse.space]
    return rewriter.make.add("expand", rewriter.new[operand], to=Space.EDGE, way=way)
