"""Lines and sectors of host memory that a gather's warps ask for, from the addresses that its lanes read.

The kernel's own arithmetic says which vector a lane reads; a warp of 32 lanes asks for each line of 128 bytes
once. What a device's caches keep between warps is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

pytest.importorskip("triton")

from shorthaul.tensors.cuda.triton_launch import LINE_BYTES, RowVectors, choose_vectors

SECTOR_BYTES = 32
WARP = 32
PAGE = 4096
ALLOCATED = PAGE + 64  # as memory of malloc begins: not where a line does
ROWS = 128  # the places of rows in a line repeat after 32


@dataclass(frozen=True)
class Asked:
    """Per row, on average."""

    lines: float
    sectors: float


def count(vectors: RowVectors, address: int) -> Asked:
    """What the warps of a row ask for; the last of them may have idle lanes."""
    lane = torch.arange(vectors.vectors)
    lines = sectors = 0
    per_line = max(1, LINE_BYTES // vectors.vector_bytes)
    for row in range(ROWS):
        first = row * vectors.stride
        shift = (vectors.base + first) % per_line % vectors.vectors if vectors.is_shifted else 0
        column = (lane - shift) % vectors.vectors
        places = address + (first + column) * vectors.vector_bytes
        for warp in places.split(WARP):
            lines += len(torch.unique(warp // LINE_BYTES))
            sectors += len(torch.unique(warp // SECTOR_BYTES))
    return Asked(lines / ROWS, sectors / ROWS)


def plan(row_bytes: int, address: int, *, vector_bytes: int = 16) -> RowVectors:
    made = choose_vectors(
        row_bytes=row_bytes, stride_bytes=row_bytes, address=address, others=vector_bytes, word=None
    )
    assert made.vector_bytes == vector_bytes
    return made


def ideal_lines(row_bytes: int) -> int:
    return -(-row_bytes // LINE_BYTES)


# Values of float32 in a row: those of the paper's graphs, of which only 256 and 1,024 fill lines.
@pytest.mark.parametrize("width", [100, 200, 300, 400, 600, 602])
@pytest.mark.parametrize("address", [PAGE, ALLOCATED])
def test_the_shift_never_asks_for_more(width: int, address: int) -> None:
    vector_bytes = 8 if width % 4 else 16
    turned = plan(4 * width, address, vector_bytes=vector_bytes)
    assert turned.is_shifted
    straight = replace(turned, is_shifted=False)
    assert count(turned, address).lines <= count(straight, address).lines
    # Rows that begin anywhere touch up to one line more than they fill, and a warp that ends inside of a
    # line leaves the rest of it to the next one.
    covered = 4 * width / LINE_BYTES + 1
    warps = -(-turned.vectors // WARP)
    assert count(turned, address).lines <= covered + warps


def test_a_page_saves_a_line_of_each_row_that_fills_lines() -> None:
    assert count(plan(512, PAGE), PAGE) == Asked(4.0, 16.0)
    assert count(replace(plan(512, ALLOCATED), is_shifted=False), ALLOCATED).lines == 5.0


def test_words_of_four_bytes_as_in_the_paper() -> None:
    """100 values of four bytes, a value a lane: 400 bytes fill 3.125 lines, four at least."""
    turned = replace(
        plan(400, PAGE), word=torch.int32, words=1, vectors=100, stride=100, base=0, is_shifted=True
    )
    straight = replace(turned, is_shifted=False)
    assert ideal_lines(400) == 4
    before, after = count(straight, PAGE), count(turned, PAGE)
    assert before.lines == pytest.approx(6.625)
    assert after.lines == pytest.approx(4.875)
