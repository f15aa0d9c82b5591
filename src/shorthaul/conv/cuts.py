"""What all plans cut alike: parts of about equal size, columns under outputs, and a thread's workspace."""

from __future__ import annotations

import math

from shorthaul.conv.geometry import WindowTask
from shorthaul.conv.machine import this_machine


def even_part(total: int, largest: int) -> int:
    """The size of about equal parts of at most `largest`.

    >>> even_part(100, 40), even_part(100, 100)
    (34, 100)
    """
    return -(-total // -(-total // largest))


def columns_under(task: WindowTask, outputs: int) -> int:
    """Image columns that the windows of neighbouring outputs read, as they are packed."""
    reach = (task.shape.kernel[2] - 1) * task.shape.dilation[2] + 1
    return (outputs - 1) * task.shape.column_step + reach


def carved_bytes(*pieces: int) -> int:
    """Workspace for the pieces, each from a cache line on; the next thread's begins at one, too.

    A workspace that began in the middle of a line would have every vector of a thread cross two.

    >>> carved_bytes(1, 64, 65)
    256
    """
    return sum(-(-piece // 64) * 64 for piece in pieces)


def block_bytes(task: WindowTask, pixels: int, block_columns: int, panel: int) -> int:
    """Workspace of a block of windows besides its strips, as the kernels carve it; the last line is slack."""
    value_bytes = task.sum_bytes
    capacity = pixels + this_machine().lanes(value_bytes)
    pieces = (
        capacity * 8, capacity * 8, capacity * panel * value_bytes, columns_under(task, block_columns) * 4,
        math.prod(task.shape.kernel) * 16, 64,
    )  # fmt: skip
    return carved_bytes(*pieces)
