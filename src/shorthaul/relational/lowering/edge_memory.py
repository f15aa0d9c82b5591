"""Which numbers per edge are written down: those that several loops would have to compute again.

A value of an edge has no memory by default. But an attention weight that the weighted sum, the gradient
of the rows and the gradient of the scores all need would be computed three times, out of rows that lie
far apart; written down, it is a few bytes. The loop that needs it first writes it on its way::

    logit = sum (multiply key, query)      # an inner product: two rows of 64 numbers
    alpha = exp (logit - highest) / total  # four more reads and a power
    out    = reduce (alpha * value) {way=target}       -> the loop over targets wants alpha
    dvalue = reduce (alpha * dout) {way=source_pair}   -> so does the loop over pairs: alpha is kept

What a product reads or makes per edge is not chosen: it lies in memory as a whole, made once.
"""

from __future__ import annotations

from collections.abc import Iterable

from shorthaul.relational.ir.pointwise import POINTWISE
from shorthaul.relational.ir.program import Program, needed_steps
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.step import Step

KEPT_WIDTH = 16  # wider values are not cheaper to read than what they are made of
PRODUCT_WIDTH = 16  # an inner product of fewer numbers is cheaper to compute again

Loop = tuple[bool, Space, str]  # in the forward part?; the rows; the way from the edges to them


def find_kept_edge_values(program: Program, forward_outputs: Iterable[str]) -> set[str]:
    """The narrow edge values that are costly and that several loops want."""
    forward = {step.name for step in needed_steps(program, forward_outputs)}
    given = _find_rows_of_products(program)
    chosen = _choose(program, forward, given, set())
    # One that is cheap to make from the others is not worth its memory; then more loops want those.
    cheap = {name for name in chosen if not _is_costly(program, name, (chosen | given) - {name})}
    return _choose(program, forward, given, cheap)


def _choose(program: Program, forward: set[str], given: set[str], refused: set[str]) -> set[str]:
    users = program.users()
    order: dict[Loop, int] = {}
    for step in program.steps:
        if _reduces_edges(program, step) or step.name in given:
            order.setdefault(_loop(step, forward), len(order))
    loops: dict[str, set[Loop]] = {}
    kept: set[str] = set()
    for step in reversed(program.steps):
        if step.space is not Space.EDGE or step.operation in ("input", "expand"):
            continue
        wanted: set[Loop] = set()
        for user in users[step.name]:
            if _reduces_edges(program, user) or user.name in given:
                wanted.add(_loop(user, forward))
            elif user.name in kept:  # made once, by the first loop that wants it
                wanted.add(min(loops[user.name], key=order.__getitem__))
            else:
                wanted |= loops.get(user.name, set())
        loops[step.name] = wanted
        is_narrow = step.size <= KEPT_WIDTH and step.operation not in ("reshape", "broadcast")
        is_shared = len(wanted) > 1 and step.name not in refused and step.name not in given
        if is_narrow and is_shared and _is_costly(program, step.name, given):
            kept.add(step.name)
    return kept


def _find_rows_of_products(program: Program) -> set[str]:
    """The values of edges that a product reads or makes; what it reads is made by loops over edges."""
    found: set[str] = set()
    for step in reversed(program.steps):
        if step.operation in ("linear", "outer"):
            found.update((step.name, *step.operands))
        elif step.operation == "reshape" and step.name in found:  # the same memory
            found.update(step.operands)
    return {name for name in found if program[name].space is Space.EDGE}


def _loop(step: Step, forward: set[str]) -> Loop:
    """The loop that makes a sum over edges, or a row per edge."""
    return step.name in forward, step.space, step.get("way") or ""


def _reduces_edges(program: Program, step: Step) -> bool:
    return step.operation == "reduce" and program[step.operands[0]].space is Space.EDGE


def _is_costly(program: Program, name: str, there: set[str]) -> bool:
    """Whether making the value from rows and what is `there` takes an inner product or a power."""
    waiting = [name]
    while waiting:
        step = program[waiting.pop()]
        if step.space is not Space.EDGE or step.operation == "expand" or step.name in there:
            continue
        if step.operation == "sum" and program[step.operands[0]].size >= PRODUCT_WIDTH:
            return True
        if step.operation in POINTWISE and POINTWISE[step.operation].is_costly:
            return True
        waiting.extend(step.operands)
    return False
