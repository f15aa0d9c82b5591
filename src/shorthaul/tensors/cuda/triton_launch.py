"""Launching the Triton gathers on rows that a device can reach: vectors, blocks, flags.

The rows are `StoredRows` whose tensors are views on the device of mapped host memory (or, in
Triton's interpreter, plain CPU tensors).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import triton
import triton.language as tl

from shorthaul.errors import RowArgumentError, RowIndexError
from shorthaul.jit.launching.launch_grid import flat_grid
from shorthaul.meter import record_launch
from shorthaul.tensors.cuda.late_check import NO_BAD_POSITION
from shorthaul.tensors.cuda.row_cache import DeviceRowCache
from shorthaul.tensors.cuda.triton_gather import gather_kernel, reduce_kernel
from shorthaul.tensors.kernels.plain_rows import Reduction, sum_dtype
from shorthaul.tensors.kernels.stored_rows import StoredRows

LINE_BYTES = 128  # what a device asks of PCIe, and of its own memory, at a time
WIDEST_VECTOR_BYTES = 16
MOST_LANES = 64
VECTORS_PER_PROGRAM = 256
ROWS_AT_ONCE = 8  # of one segment, in flight together
WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


@dataclass(frozen=True)
class RowVectors:
    """How kernels see the rows of a table: as a number of vectors of a number of words."""

    word: torch.dtype
    words: int  # in a vector
    vectors: int  # in a row
    stride: int  # vectors from one row to the next
    base: int  # vectors from the beginning of a line to the table's first row
    is_shifted: bool  # whether lanes are turned, so that warps keep to the lines of the source

    @property
    def vector_bytes(self) -> int:
        """Bytes that one lane moves at a time."""
        return self.word.itemsize * self.words

    @property
    def lanes(self) -> int:
        """Lanes of a program that share a row: a power of two."""
        return min(MOST_LANES, int(triton.next_power_of_2(max(1, self.vectors))))


def choose_vectors(
    *, row_bytes: int, stride_bytes: int, address: int, others: int, word: torch.dtype | None
) -> RowVectors:
    """The widest vectors that rows, their distance, the table's address and `others` are multiples of.

    Bytes that are only copied are moved as words of up to 8 bytes; values that are computed with
    keep the `word` that they are stored as. Rows of more than a line are shifted, unless all of them
    begin at the beginning of a line.
    """
    vector_bytes = math.gcd(WIDEST_VECTOR_BYTES, row_bytes, stride_bytes, address, others)
    if word is None:
        word = WORDS[min(8, vector_bytes)]
    is_aligned = stride_bytes % LINE_BYTES == 0 and address % LINE_BYTES == 0
    return RowVectors(
        word,
        vector_bytes // word.itemsize,
        row_bytes // vector_bytes,
        stride_bytes // vector_bytes,
        address % LINE_BYTES // vector_bytes,
        is_shifted=row_bytes > LINE_BYTES and not is_aligned,
    )


class Flag(Protocol):
    """Where a kernel leaves the smallest position of an id that is out of range."""

    @property
    def position(self) -> torch.Tensor:
        """One number on the device."""


class RangeFlag:
    """A flag of its own, for who looks at it.

    Looking waits for the device. Gathers that share a flag can be looked at once, later.
    """

    def __init__(self, device: torch.device) -> None:
        self.position = torch.full((1,), NO_BAD_POSITION, dtype=torch.int64, device=device)

    def require_clear(self, ids: torch.Tensor, rows: int) -> None:
        """Raise `RowIndexError` if an id of the gathers so far was out of range."""
        position = int(self.position)
        if position != NO_BAD_POSITION:
            raise RowIndexError(int(ids[position]), position, rows)


def gather_rows(
    rows: StoredRows,
    ids: torch.Tensor,
    flag: Flag,
    *,
    out: torch.Tensor | None = None,
    is_sorted: bool = False,
    cache: DeviceRowCache | None = None,
) -> torch.Tensor:
    """The rows that `ids` name, in that order; `is_sorted` reads them in the table's order.

    Sorted reads meet neighbors in one line or page, for the price of a sort.
    """
    shape = (len(ids), *rows.row_shape)
    if out is None:
        out = torch.empty(shape, dtype=rows.dtype, device=ids.device)
    elif out.shape != shape or out.dtype is not rows.dtype or not out.is_contiguous():
        raise RowArgumentError(
            "out",
            f"contiguous {rows.dtype} of shape {shape}",
            f"{out.dtype} of shape {tuple(out.shape)} with strides {out.stride()}",
        )
    if len(ids) == 0:
        return out
    order = None
    if is_sorted:
        ids, order = torch.sort(ids)
    ids = ids.contiguous()
    vectors = _vectors_of(rows, out)
    block_rows = rows_per_program(vectors)
    blocks = max(1, triton.cdiv(vectors.vectors, vectors.lanes))
    target = out
    if not rows.is_widened:
        target = _as_words(out, vectors.word, len(ids) * vectors.vectors * vectors.words)
    unused = flag.position
    gather_kernel[flat_grid("gather_kernel", triton.cdiv(len(ids), block_rows), blocks)](
        _table_words(rows, vectors),
        unused if rows.scales is None else rows.scales,
        *_cache_words(cache, vectors, unused),
        ids,
        unused if order is None else order,
        target,
        flag.position,
        len(ids),
        rows.rows,
        vectors.base,
        vectors.stride,
        vectors.vectors,
        blocks,
        **gather_constants(vectors, block_rows),
        HAS_ORDER=order is not None,
        HAS_SCALES=rows.scales is not None,
        HAS_CACHE=cache is not None,
    )
    record_launch("gather_kernel")
    return out


def reduce_rows(
    rows: StoredRows,
    pointers: torch.Tensor,
    ids: torch.Tensor,
    op: Reduction,
    flag: Flag,
    *,
    weights: torch.Tensor | None = None,
    cache: DeviceRowCache | None = None,
) -> torch.Tensor:
    """One row for each segment `ids[pointers[s]:pointers[s + 1]]`; zeros where it is empty."""
    segments = len(pointers) - 1
    out = torch.empty((segments, *rows.row_shape), dtype=rows.dtype, device=ids.device)
    if out.numel() == 0:
        return out
    vectors = _vectors_of(rows, out, word=rows.values.dtype)
    blocks = triton.cdiv(vectors.vectors, vectors.lanes)
    unused = flag.position
    reduce_kernel[flat_grid("reduce_kernel", segments, blocks)](
        _table_words(rows, vectors),
        unused if rows.scales is None else rows.scales,
        *_cache_words(cache, vectors, unused),
        pointers.contiguous(),
        ids.contiguous() if len(ids) else unused,
        unused if weights is None or len(ids) == 0 else weights.contiguous(),
        out,
        flag.position,
        len(ids),
        rows.rows,
        vectors.stride,
        vectors.vectors,
        blocks,
        **reduce_constants(vectors, op, rows.dtype),
        HAS_WEIGHTS=weights is not None and len(ids) > 0,
        HAS_SCALES=rows.scales is not None,
        HAS_CACHE=cache is not None,
    )
    record_launch("reduce_kernel")
    return out


def rows_per_program(vectors: RowVectors) -> int:
    """Rows that one program gathers: narrow ones share it."""
    return max(1, VECTORS_PER_PROGRAM // vectors.lanes)


def gather_constants(vectors: RowVectors, block_rows: int) -> dict[str, Any]:
    """What `gather_kernel` is compiled for, apart from which arguments it has."""
    return {
        "LINE": max(1, LINE_BYTES // vectors.vector_bytes),
        "WORDS": vectors.words,
        "IS_SHIFTED": vectors.is_shifted,
        "BLOCK_ROWS": block_rows,
        "BLOCK_LANES": vectors.lanes,
    }


def reduce_constants(vectors: RowVectors, op: Reduction, dtype: torch.dtype) -> dict[str, Any]:
    """What `reduce_kernel` is compiled for, apart from which arguments it has."""
    return {
        "OP": op,
        "WORDS": vectors.words,
        "SUM": tl.float64 if sum_dtype(dtype) is torch.float64 else tl.float32,
        "BLOCK_ROWS": ROWS_AT_ONCE,
        "BLOCK_LANES": vectors.lanes,
    }


def _vectors_of(rows: StoredRows, out: torch.Tensor, word: torch.dtype | None = None) -> RowVectors:
    word = rows.values.dtype if rows.is_widened else word
    # Words are counted from the beginning of a storage, which need not be aligned itself.
    others = rows.values.untyped_storage().data_ptr()
    if word is None:
        others = math.gcd(others, out.data_ptr(), out.untyped_storage().data_ptr())
    return choose_vectors(
        row_bytes=rows.width * rows.values.element_size(),
        stride_bytes=rows.stride_bytes,
        address=rows.values.data_ptr(),
        others=others,
        word=word,
    )


def _table_words(rows: StoredRows, vectors: RowVectors) -> torch.Tensor:
    count = 0
    if rows.values.numel():
        count = (rows.rows - 1) * vectors.stride + vectors.vectors
    return _as_words(rows.values, vectors.word, count * vectors.words)


def _cache_words(
    cache: DeviceRowCache | None, vectors: RowVectors, unused: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if cache is None:
        return unused, unused
    count = len(cache.values) * vectors.vectors
    return _as_words(cache.values, vectors.word, count * vectors.words), cache.slots


def _as_words(tensor: torch.Tensor, word: torch.dtype, count: int) -> torch.Tensor:
    """The memory from the tensor's first byte on, as `count` words."""
    if tensor.dtype is word:
        return torch.as_strided(tensor, (count,), (1,), tensor.storage_offset())
    first_bytes = int(tensor.storage_offset()) * tensor.element_size()
    flat = torch.empty(0, dtype=word, device=tensor.device)
    return flat.set_(tensor.untyped_storage(), first_bytes // word.itemsize, (count,), (1,))
