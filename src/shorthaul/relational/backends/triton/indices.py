"""Where elements of a row are: the index arithmetic of steps that only move them.

An index along one dimension of a value is an expression over a frame, the dimensions of the tensor that
is being computed. Moving elements is moving indices::

    slice x {start=2}       i      ->  i + 2
    reshape x (6,) (2, 3)   i      ->  i // 3, i % 3
    broadcast x (1, 3)      i, j   ->  0, j
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shorthaul.relational.ir.step import Shape


@dataclass(frozen=True)
class At:
    """An index along one dimension: an expression, and which axis of the frame it simply is."""

    text: str
    axis: int | None = None

    @property
    def is_constant(self) -> bool:
        """Whether it is one number for all elements."""
        return self.text.isdigit()


ZERO = At("0")


def round_up(size: int) -> int:
    """The next power of two."""
    return 1 << max(0, size - 1).bit_length()


def flat(shape: Sequence[int], at: Sequence[At]) -> str:
    """The position of an element in a row."""
    terms, stride = [], 1
    for size, index in zip(reversed(shape), reversed(list(at)), strict=True):
        if index != ZERO:
            terms.append(index.text if stride == 1 else f"{index.text} * {stride}")
        stride *= size
    return " + ".join(reversed(terms)) or "0"


def aligned(shape: Shape, at: Sequence[At]) -> list[At]:
    """The position in an operand that is repeated to a larger shape."""
    tail = list(at)[len(at) - len(shape) :]
    return [ZERO if size == 1 else index for size, index in zip(shape, tail, strict=True)]


def shift(index: At, by: int, size: int) -> At:
    """An index into a dimension of `size`, moved."""
    if size == 1:
        return ZERO
    if index.is_constant:
        return At(str(max(0, int(index.text) + by)))
    return index if by == 0 else At(f"({index.text} + {by})")


def reshape(shape: Shape, operand: Shape, at: Sequence[At]) -> list[At]:
    """Where elements of `shape` lie in the operand's shape: the same place in a row."""
    kept = [(size, index) for size, index in zip(shape, at, strict=True) if size != 1]
    if [size for size, _ in kept] == [size for size in operand if size != 1]:
        indices = iter(index for _, index in kept)
        return [ZERO if size == 1 else next(indices) for size in operand]
    position, moved, stride = f"({flat(shape, at)})", [], 1
    for axis in reversed(range(len(operand))):
        size = operand[axis]
        is_first = all(each == 1 for each in operand[:axis])
        text = position if stride == 1 else f"({position} // {stride})"
        if size == 1:
            moved.append(ZERO)
        else:
            moved.append(At(text if is_first else f"({text} % {size})"))
        stride *= size
    return moved[::-1]
