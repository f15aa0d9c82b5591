"""What a rewriting costs, so that the passes can choose: multiply-adds and elements moved.

Two kinds of work are counted, by the rows that the graph has::

    multiply-adds    of products: rows x depth x width
    elements         read along an index, or written: rows x width

An element takes as long as `ELEMENT_WORK` multiply-adds: a core does two vectors of multiply-adds in a
cycle out of its registers, and brings one element of a gathered row in from the second or third cache
in half a cycle. The gradient of a product is two products of its size (for the rows, for the weight),
the gradient of a traversal is one traversal, which changes the balance when a program is trained.

>>> first = Cost(multiply_adds=1000 * 64 * 64) + Cost(elements=5000 * 64)
>>> later = Cost(multiply_adds=200 * 64 * 64) + Cost(elements=5000 * 64)
>>> later.total(trains=False) < first.total(trains=False)
True
"""

from __future__ import annotations

from dataclasses import dataclass

ELEMENT_WORK = 8


@dataclass(frozen=True)
class Cost:
    """The work of some steps, forward."""

    multiply_adds: int = 0
    elements: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.multiply_adds + other.multiply_adds, self.elements + other.elements)

    def total(self, trains: bool) -> int:
        """In multiply-adds; with the gradients where they are wanted."""
        products, traversals = (3, 2) if trains else (1, 1)
        return products * self.multiply_adds + traversals * ELEMENT_WORK * self.elements
