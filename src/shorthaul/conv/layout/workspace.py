"""What all plans cut alike: parts of about equal size, columns under outputs, and a thread's workspace."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from shorthaul.conv.problem.geometry import WindowTask
from shorthaul.conv.problem.machine import this_machine


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


def find_largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number from `low` to `high` that fits, as all below it do; `low` if none does."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def share_rows(rows: int, wanted: int, most: int, others: int, panels: int, threads: int) -> int:
    """Rows of a block: about `wanted`, at most `most`, and so that threads have about equal work.

    `others` blocks lie beside each block of rows. Threads take equal numbers of blocks, as far as that
    goes, and blocks differ by at most one row. Fewer blocks than threads are left as they are where
    threads can share those by panels of output channels.
    """
    if -(-rows // wanted) * others < threads and panels % threads == 0:
        return wanted

    def largest_share(size: int) -> float:
        blocks = -(-rows // size)
        ends = [blocks * others * thread // threads / others for thread in range(threads + 1)]
        at = [rows * int(end) // blocks + (end % 1) * rows / blocks for end in ends]
        return max(after - before for before, after in itertools.pairwise(at)) * threads / rows

    sizes = range(max(1, (wanted + 1) // 2), min(most, 2 * wanted) + 1)
    best = min(sizes, key=lambda size: (round(largest_share(size), 2), abs(size - wanted)))
    return even_part(rows, best)
