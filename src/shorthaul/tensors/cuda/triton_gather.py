# Constants are upper case, as in Triton's own kernels; Triton's decorator has no types.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Gathers on CUDA that read rows where they lie, in host memory that is mapped into the device.

A row is a run of vectors, up to 16 bytes each. PCIe reads whole lines of 128 bytes, and rows whose
size is no multiple of that begin anywhere in a line, so that a warp which starts at the row's first
byte asks for one line more than it has to. The paper's circular shift turns the lanes instead::

    line        |-------------- 128 bytes --------------|-------------- 128 bytes --------------|
    row                     [ 0 1 2 3 4 5 6 7 8 9 ... 28 29 30 31 ... ]
    lanes       28 29 30 ... 0 1 2 3 4 5 6 7 8 9 ...      (lane = column + shift, around the row)

Lane `shift` reads column 0, and every later lane keeps its distance from the beginning of a line.
The lanes before it read what falls off the row's end.

An id out of range is never read through: its row is zeros, and its position goes to `flag`, which
holds the smallest such position. Everything is masked, so sizes need not fit the blocks.

Correctness is tested with Triton's interpreter, and that the kernels compile for sm_80 and sm_90.
Their speed has not been measured.
"""

import triton
import triton.language as tl


@triton.jit
def _columns(lane, shift, VECTORS):
    """The vector of its row that each lane moves: turned by `shift`, around the row."""
    column = lane[None, :] - shift[:, None]
    return tl.where(column < 0, column + VECTORS, column)


@triton.jit
def _row_ids(ids, position, mask, ROWS):
    """Row numbers without negative ones, and which of them exist; the others are taken as row 0.

    Their shift would be that of an address before the table, and they would write beside their row.
    """
    row = tl.load(ids + position, mask=mask, other=0).to(tl.int64)
    row = tl.where(row < 0, row + ROWS, row)
    exists = mask & (row >= 0) & (row < ROWS)
    return tl.where(exists, row, 0), exists


@triton.jit
def _load_rows(
    table, cache, slots, row, exists, lane, lane_mask,
    BASE, STRIDE, VECTORS,
    LINE: tl.constexpr, WORDS: tl.constexpr, HAS_CACHE: tl.constexpr, IS_SHIFTED: tl.constexpr,
):  # fmt: skip
    """A tile of rows, (rows, lanes, words of a vector), with the column that each lane moved."""
    first = row * STRIDE  # in vectors, from the table's beginning
    if IS_SHIFTED:
        shift = ((BASE + first) % LINE).to(tl.int32) % VECTORS
    else:
        shift = tl.zeros_like(row).to(tl.int32)
    word = tl.arange(0, WORDS)
    if HAS_CACHE:
        slot = tl.load(slots + row, mask=exists, other=-1).to(tl.int64)
        is_hot = exists & (slot >= 0)
        column = _columns(lane, tl.where(is_hot, 0, shift), VECTORS)
        place = (first[:, None] + column) * WORDS
        place = place[:, :, None] + word[None, None, :]
        hot_place = (slot[:, None] * VECTORS + column) * WORDS
        hot_place = hot_place[:, :, None] + word[None, None, :]
        cold = (exists & (slot < 0))[:, None] & lane_mask[None, :]
        hot = is_hot[:, None] & lane_mask[None, :]
        value = tl.load(table + place, mask=cold[:, :, None], other=0)
        kept = tl.load(cache + hot_place, mask=hot[:, :, None], other=0)
        value = tl.where(is_hot[:, None, None], kept, value)
    else:
        column = _columns(lane, shift, VECTORS)
        place = (first[:, None] + column) * WORDS
        place = place[:, :, None] + word[None, None, :]
        mask = exists[:, None] & lane_mask[None, :]
        value = tl.load(table + place, mask=mask[:, :, None], other=0)
    return value, column


@triton.jit
def gather_kernel(
    table, scales, cache, slots, ids, order, output, flag,
    COUNT, ROWS, BASE, STRIDE, VECTORS, BLOCKS,
    LINE: tl.constexpr, WORDS: tl.constexpr,
    HAS_ORDER: tl.constexpr, HAS_SCALES: tl.constexpr, HAS_CACHE: tl.constexpr,
    IS_SHIFTED: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_LANES: tl.constexpr,
):  # fmt: skip
    """output[order[i], :] = table[ids[i], :], widened and multiplied by the row's scale if it has one."""
    block = tl.program_id(0)
    position = (block // BLOCKS).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    lane = (block % BLOCKS) * BLOCK_LANES + tl.arange(0, BLOCK_LANES)
    mask = position < COUNT
    lane_mask = lane < VECTORS
    row, exists = _row_ids(ids, position, mask, ROWS)
    target = position
    if HAS_ORDER:
        target = tl.load(order + position, mask=mask, other=0)
    tl.atomic_min(flag + tl.zeros_like(target), target, mask=mask & (exists == 0))
    value, column = _load_rows(
        table, cache, slots, row, exists, lane, lane_mask,
        BASE, STRIDE, VECTORS, LINE, WORDS, HAS_CACHE, IS_SHIFTED,
    )  # fmt: skip
    if HAS_SCALES:
        scale = tl.load(scales + row, mask=exists, other=0.0)
        value = value.to(tl.float32) * scale[:, None, None]
    word = tl.arange(0, WORDS)
    place = (target[:, None] * VECTORS + column) * WORDS
    place = place[:, :, None] + word[None, None, :]
    written = (mask[:, None] & lane_mask[None, :])[:, :, None]
    tl.store(output + place, value.to(output.dtype.element_ty), mask=written)


@triton.jit
def reduce_kernel(
    table, scales, cache, slots, pointers, ids, weights, output, flag,
    COUNT, ROWS, STRIDE, VECTORS, BLOCKS,
    OP: tl.constexpr, WORDS: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr, HAS_SCALES: tl.constexpr, HAS_CACHE: tl.constexpr,
    SUM: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_LANES: tl.constexpr,
):  # fmt: skip
    """output[s, :] = sum, mean or maximum of the rows that ids[pointers[s] : pointers[s + 1]] name.

    One program owns one segment and a run of columns, and adds its rows in their order, some at a
    time: the same sum whatever else runs. The rows themselves are never written anywhere. Lanes are
    not turned here: a lane adds up one column of rows that begin at different places in a line.
    """
    block = tl.program_id(0)
    segment = (block // BLOCKS).to(tl.int64)
    lane = (block % BLOCKS) * BLOCK_LANES + tl.arange(0, BLOCK_LANES)
    lane_mask = lane < VECTORS
    start = tl.maximum(tl.load(pointers + segment).to(tl.int64), 0)
    stop = tl.minimum(tl.load(pointers + segment + 1).to(tl.int64), COUNT)
    if OP == "max":
        total = tl.full((BLOCK_LANES, WORDS), float("-inf"), dtype=SUM)
    else:
        total = tl.zeros((BLOCK_LANES, WORDS), dtype=SUM)
    for at in range(start, stop, BLOCK_ROWS):
        position = at + tl.arange(0, BLOCK_ROWS)
        mask = position < stop
        row, exists = _row_ids(ids, position, mask, ROWS)
        tl.atomic_min(flag + tl.zeros_like(position), position, mask=mask & (exists == 0))
        value, _ = _load_rows(
            table, cache, slots, row, exists, lane, lane_mask,
            0, STRIDE, VECTORS, 1, WORDS, HAS_CACHE, False,
        )  # fmt: skip
        value = value.to(SUM)
        if HAS_SCALES:
            value = value * tl.load(scales + row, mask=exists, other=0.0).to(SUM)[:, None, None]
        if HAS_WEIGHTS:
            value = value * tl.load(weights + position, mask=mask, other=0.0).to(SUM)[:, None, None]
        if OP == "max":
            value = tl.where(mask[:, None, None], value, float("-inf"))
            # The machine's own maximum prefers numbers, so NaNs are looked for beside it.
            is_nan = value != value
            largest = tl.max(tl.where(is_nan, float("-inf"), value), 0)
            largest = tl.where(tl.max(is_nan.to(tl.int32), 0) > 0, float("nan"), largest)
            total = tl.where((total > largest) | (total != total), total, largest)
        else:
            total += tl.sum(tl.where(mask[:, None, None], value, 0.0), 0)
    count = stop - start
    if OP == "mean":
        total = total / tl.maximum(count, 1).to(SUM)
    total = tl.where(count > 0, total, 0.0)
    word = tl.arange(0, WORDS)
    place = ((segment * VECTORS + lane) * WORDS)[:, None] + word[None, :]
    tl.store(output + place, total.to(output.dtype.element_ty), mask=lane_mask[:, None])
