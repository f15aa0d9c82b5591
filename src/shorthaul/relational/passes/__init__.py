"""The passes, in order: reading `PIPELINE` is reading the compiler.

Each is a function from program to program, documented by what it rewrites, and can be left out by
its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.verify import verify_program
from shorthaul.relational.lowering.kernels import CHOICES
from shorthaul.relational.passes.aggregation import place_products
from shorthaul.relational.passes.bases import order_bases
from shorthaul.relational.passes.compact import compact
from shorthaul.relational.passes.reorder import multiply_weights_first
from shorthaul.relational.passes.rewriting import GraphSizes
from shorthaul.relational.passes.sides import choose_sides
from shorthaul.relational.passes.simplify import canonicalize, remove_concatenations
from shorthaul.relational.passes.spread import scale_on_edges

Pass = Callable[[Program, GraphSizes], Program]

PIPELINE: tuple[Pass, ...] = (
    canonicalize,  # one form, each value once
    remove_concatenations,  # products of parts in place of parts put together
    compact,  # the fewest rows
    multiply_weights_first,  # the cheapest order of products
    order_bases,  # rows by bases, or by what the bases make
    choose_sides,  # each relation where it has fewer nodes
    place_products,  # before or after the sums over edges
    scale_on_edges,  # no rows per pair that are a node's row and a number
    canonicalize,  # what the others left
)

# What `without` can name: the passes, and the choices that lowering makes.
PASS_NAMES = (*dict.fromkeys(each.__name__ for each in PIPELINE), *CHOICES)


def run_passes(
    program: Program, sizes: GraphSizes, without: Collection[str] = ()
) -> Iterator[tuple[str, Program]]:
    """The program after each pass, verified, with the pass's name."""
    for each in PIPELINE:
        if each.__name__ not in without:
            program = verify_program(each(program, sizes), each.__name__, program)
            yield each.__name__, program
