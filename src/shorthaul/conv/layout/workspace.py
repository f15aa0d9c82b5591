"""What all plans cut alike: parts of about equal size, columns under outputs, and a thread's workspace."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

from shorthaul.conv.problem.geometry import WindowTask


def even_part(total: int, largest: int) -> int:
    """The size of about equal parts of at most `largest`.

    >>> even_part(100, 40), even_part(100, 100)
    (34, 100)
    """
    return -(-total // -(-total // largest))


def columns_under(task: WindowTask, outputs: int) -> int:
    """Image columns that the windows of neighboring outputs read, as they are packed."""
    reach = (task.shape.kernel[2] - 1) * task.shape.dilation[2] + 1
    return (outputs - 1) * task.shape.column_step + reach


# Bytes of what may lie in a workspace, besides sums (`real`) and packed values (`factor`).
TYPE_BYTES = {
    "int32_t": 4,
    "int64_t": 8,
    "const value*": 8,
    "Run": 16,
    "Stretch": 32,
    "PlanarStretch": 32,
}
LINE_BYTES = 64


class Carved(NamedTuple):
    """A thread's workspace: its size, and where each piece begins."""

    thread_bytes: int
    places: tuple[int, ...]


class Workspace:
    """The pieces of a thread's workspace, by name and C++ type: declared once, for plans and for kernels.

    Each begins at a cache line, and the next thread's workspace does, too: vectors of one that began in the
    middle of a line would all cross two.

    >>> pieces = Workspace(offsets="int64_t", columns="int32_t")
    >>> pieces.carve(4, offsets=9, columns=1)
    Carved(thread_bytes=192, places=(0, 128))
    """

    def __init__(self, **types: str) -> None:
        self.types = types

    def carve(
        self, real_bytes: int, factor_bytes: int = 4, *, slack_bytes: int = 0, **counts: int
    ) -> Carved:
        """Where as many values of each piece lie, and `slack_bytes` that vectors may read behind the last."""
        sizes = {**TYPE_BYTES, "real": real_bytes, "factor": factor_bytes}
        places, end = [], 0
        for name, type_name in self.types.items():
            places.append(end)
            end += -(-counts[name] * sizes[type_name] // LINE_BYTES) * LINE_BYTES
        return Carved(end + slack_bytes, tuple(places))

    def emit(self) -> str:
        """The pieces as pointers, from a thread's memory and the places of the plan."""
        members = "".join(f"  {kind}* {name};\n" for name, kind in self.types.items())
        values = ", ".join(
            f"{name}(reinterpret_cast<{kind}*>(memory + places[{number}]))"
            for number, (name, kind) in enumerate(self.types.items())
        )
        checks = "".join(
            f"static_assert(sizeof({kind}) == {TYPE_BYTES[kind]});\n"
            for kind in dict.fromkeys(self.types.values())
            if kind.isidentifier() and kind in TYPE_BYTES and not kind.endswith("_t")
        )
        return f"""\
// A thread's workspace; its plan says where each piece begins.
struct Workspace {{
  using value = Value::value;
{members}  Workspace(uint8_t* memory, const int64_t* places) : {values} {{}}
}};
{checks}"""


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
