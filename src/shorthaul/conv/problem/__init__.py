"""What is to be convolved, of what sizes, and on which vectors."""

from shorthaul.conv.problem.problem import (
    ACTIVATIONS,
    LAYOUTS,
    NO_PADDING,
    PADDING_MODES,
    ConvProblem,
    Pair,
    Triple,
    source_index,
)

__all__ = [
    "ACTIVATIONS",
    "LAYOUTS",
    "NO_PADDING",
    "PADDING_MODES",
    "ConvProblem",
    "Pair",
    "Triple",
    "source_index",
]
