"""How an author says what a layer's arguments are: annotations with named widths.

    def layer(g, x: NodeFeature("width"), weight: Weight("relation", "width", "out")): ...

A name stands for a number that is given when the layer is made; a number stands for itself; an
expression such as "heads*out" is a product of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shorthaul.errors import LayerArgumentError
from shorthaul.relational.ir.spaces import Space

Width = str | int

_SLICES = {"relation": Space.RELATION, "node_type": Space.NODE_TYPE}


@dataclass(frozen=True)
class Declaration:
    """A tensor that a layer takes: its space, and its widths by name."""

    space: Space
    widths: tuple[Width, ...]
    kind: str  # "node", "target", "edge" or "weight"

    def names(self) -> tuple[str, ...]:
        """The names that the widths are made of."""
        factors = [factor.strip() for each in self.widths for factor in str(each).split("*")]
        return tuple(each for each in factors if not each.isdigit())

    def resolve(self, sizes: Mapping[str, int], argument: str) -> tuple[int, ...]:
        """The widths as numbers."""
        return tuple(_resolve(width, sizes, argument) for width in self.widths)


def NodeFeature(*widths: Width) -> Declaration:  # noqa: N802 - it stands where a type would
    """A tensor with one row per node."""
    return Declaration(Space.NODE, widths, "node")


def TargetFeature(*widths: Width) -> Declaration:  # noqa: N802
    """A tensor with one row per target, which sources have not: where the two are apart."""
    return Declaration(Space.TARGET, widths, "target")


def EdgeFeature(*widths: Width) -> Declaration:  # noqa: N802
    """A tensor with one row per edge, in the graph's order of edges."""
    return Declaration(Space.EDGE, widths, "edge")


def Weight(*widths: Width) -> Declaration:  # noqa: N802
    """A parameter: one for all, or one per "relation", "node_type", or both, when these come first."""
    if widths[:2] == ("relation", "node_type"):
        return Declaration(Space.RELATION_TYPE, widths[2:], "weight")
    if widths and widths[0] in _SLICES:
        return Declaration(_SLICES[str(widths[0])], widths[1:], "weight")
    return Declaration(Space.ONE, widths, "weight")


def _resolve(width: Width, sizes: Mapping[str, int], argument: str) -> int:
    if isinstance(width, int):
        return width
    product = 1
    for factor in width.split("*"):
        name = factor.strip()
        if name.isdigit():
            product *= int(name)
        elif name in sizes:
            product *= sizes[name]
        else:
            raise LayerArgumentError(
                f"`{argument}` has the width `{name}`, which was not given",
                f"pass {name}=... when making the layer; given: {', '.join(sizes) or 'nothing'}",
            )
    return product
