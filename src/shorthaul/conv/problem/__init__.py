"""What is to be convolved, of what sizes, and on which vectors."""

from shorthaul.conv.problem.problem import (
    ACTIVATIONS,
    DEVICE_DTYPES,
    KERNEL_DTYPES,
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
    "DEVICE_DTYPES",
    "KERNEL_DTYPES",
    "LAYOUTS",
    "NO_PADDING",
    "PADDING_MODES",
    "ConvProblem",
    "Pair",
    "Triple",
    "source_index",
]
