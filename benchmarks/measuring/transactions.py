"""What a gather asks of host memory: the kernel's addresses, traced in Triton's interpreter, as lines and sectors.

    TRITON_INTERPRET=1 python -m benchmarks.measuring.transactions > benchmarks/measuring/transactions.jsonl

records them, a line for each width of rows and each way of reading them; a test holds the record to what is
traced. Lanes share warps in the order of a program's vectors, 32 at a time, as the compiled kernel lays them out.
What a device's caches keep between warps is not counted.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter

from shorthaul.tensors.cuda import triton_launch
from shorthaul.tensors.cuda.triton_launch import LINE_BYTES, RangeFlag, RowVectors, gather_rows
from shorthaul.tensors.kernels.stored_rows import StoredRows

SECTOR_BYTES = 32
WARP = 32
ROWS = 32  # after so many rows of whole numbers of four bytes their places in a line repeat
# Values of float32 in a row: those of ogbn-products, ogbn-papers100M and Reddit among others.
WIDTHS = (100, 128, 293, 343, 602, 800)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Way:
    """How rows are read, and where their table begins in its page."""

    name: str
    widest_bytes: int  # of what a lane reads at a time
    may_turn: bool  # whether lanes are turned where that keeps warps to lines
    lead_bytes: int = 0


WAYS = (
    Way("value a lane", 4, may_turn=False),
    Way("value a lane, turned", 4, may_turn=True),
    Way("ours", 16, may_turn=True),
    Way("ours, 64 bytes into a page", 16, may_turn=True, lead_bytes=64),  # as malloc begins
)


@contextmanager
def reading(way: Way) -> Iterator[None]:
    """Have the launching code choose vectors as `way` says."""
    before = dict(vars(triton_launch))
    choose = triton_launch.choose_vectors

    def chosen(**sizes: Any) -> RowVectors:
        made = choose(**sizes)
        return made if way.may_turn else replace(made, is_shifted=False)

    vars(triton_launch).update(WIDEST_VECTOR_BYTES=way.widest_bytes, choose_vectors=chosen)
    try:
        yield
    finally:
        vars(triton_launch).update(before)


@contextmanager
def tracing(table: torch.Tensor) -> Iterator[list[Any]]:
    """Collect the addresses in `table` that each warp loads from."""
    first, last = table.data_ptr(), table.data_ptr() + table.nbytes
    warps: list[Any] = []
    load = interpreter.InterpreterBuilder.create_masked_load

    def traced(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        asked = pointers.data[mask.data]
        if asked.size and first <= int(asked.flat[0]) < last:
            vectors = pointers.data.reshape(-1, pointers.data.shape[-1])
            masks = mask.data.reshape(vectors.shape)
            warps.extend(
                vectors[lane : lane + WARP][masks[lane : lane + WARP]]
                for lane in range(0, len(vectors), WARP)
            )
        return load(self, pointers, mask, *rest)

    interpreter.InterpreterBuilder.create_masked_load = traced
    try:
        yield warps
    finally:
        interpreter.InterpreterBuilder.create_masked_load = load


def make_table(width: int, lead_bytes: int) -> torch.Tensor:
    """Rows in pages of their own."""
    length_bytes = ROWS * width * 4
    pages = torch.frombuffer(mmap.mmap(-1, lead_bytes + length_bytes), dtype=torch.uint8)
    table = pages[lead_bytes:].view(torch.float32).view(ROWS, width)
    return table.copy_(torch.arange(float(ROWS * width)).view(ROWS, width))


def count(warps: list[Any], unit_bytes: int) -> float:
    """Pieces of memory of this size that warps ask for, for each row: a warp asks for one once."""
    return sum(len(np.unique(each // unit_bytes)) for each in warps) / ROWS


def trace(width: int, way: Way) -> dict[str, Any]:
    """One line of the record."""
    table = make_table(width, way.lead_bytes)
    ids = torch.arange(ROWS) * 13 % ROWS
    with reading(way), tracing(table) as warps:
        got = gather_rows(StoredRows(table, table.dtype, None), ids, RangeFlag(CPU))
    if not torch.equal(got, table[ids]):
        raise RuntimeError(f"rows of {width} values were gathered wrongly")
    row_bytes = 4 * width
    begins = table.data_ptr() + np.arange(ROWS) * row_bytes
    touched = (begins + row_bytes - 1) // LINE_BYTES - begins // LINE_BYTES + 1
    return {
        "width": width,
        "way": way.name,
        "row_bytes": row_bytes,
        "touched_lines": float(touched.mean()),
        "lines": count(warps, LINE_BYTES),
        "sectors": count(warps, SECTOR_BYTES),
    }


def main() -> None:
    for width in WIDTHS:
        for way in WAYS:
            print(json.dumps(trace(width, way)), flush=True)


if __name__ == "__main__":
    main()
