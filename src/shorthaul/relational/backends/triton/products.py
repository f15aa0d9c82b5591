# Constants are upper case, as in Triton's own kernels; Triton's decorator has no types.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""`Product` and `OuterSum` in Triton: one program per tile of rows of one type.

The host lists the tiles (`Topology.tiles`): the type of each and where its rows begin, so a program
looks nothing up and no relation, however large or small, leaves a GPU waiting for it. Every dimension
is masked. Sums have one fixed order: a weight's gradient is summed within each tile, then over the
tiles of its type from the first to the last, without atomics.

float32 and 16-bit products of wide matrices are taken by `tl.dot`, exactly unless PyTorch was told that
TF32 will do (`PRECISION`); float64 and narrow ones (an attention vector is one column) by multiplying
and adding up, which wastes no padding.
"""

import triton
import triton.language as tl


@triton.jit
def _rows_of(order, first, last, BLOCK: tl.constexpr, HAS_ORDER: tl.constexpr):
    """The rows at positions `first` and following, and which of them come before `last`."""
    position = first + tl.arange(0, BLOCK)
    inside = position < last
    if HAS_ORDER:
        position = tl.load(order + position, mask=inside, other=0).to(tl.int64)
    return position, inside


@triton.jit
def _find(gather, row, inside, HAS_GATHER: tl.constexpr):
    """The row of an operand that belongs to each row."""
    if HAS_GATHER:
        row = tl.load(gather + row, mask=inside, other=0).to(tl.int64)
    return row


@triton.jit
def product_kernel(
    limits, owners, order, gather, x, w, out, TILES, COLUMN_BLOCKS,
    HAS_ORDER: tl.constexpr, HAS_GATHER: tl.constexpr, TURNED: tl.constexpr,
    HEADS: tl.constexpr, INNER: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr,
    REAL: tl.constexpr, USES_DOT: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[row] = x[gather[row]] W[type of row], head by head."""
    tile = tl.program_id(0) % TILES
    rest = tl.program_id(0) // TILES
    lane = (rest // COLUMN_BLOCKS).to(tl.int64)  # which of HEADS * INNER vectors of a row
    first, last = tl.load(limits + tile).to(tl.int64), tl.load(limits + tile + 1).to(tl.int64)
    matrix = (tl.load(owners + tile).to(tl.int64) * HEADS + lane // INNER) * DEPTH * WIDTH
    row, inside = _rows_of(order, first, last, ROWS, HAS_ORDER)
    source = (_find(gather, row, inside, HAS_GATHER) * HEADS * INNER + lane) * DEPTH
    column = rest % COLUMN_BLOCKS * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < WIDTH
    total = tl.zeros((ROWS, COLUMNS), dtype=REAL)
    for start in range(0, DEPTH, BLOCK):
        k = start + tl.arange(0, BLOCK)
        is_deep = k < DEPTH
        vectors = tl.load(
            x + source[:, None] + k[None, :], mask=inside[:, None] & is_deep[None, :], other=0.0
        )
        if TURNED:
            place = matrix + column[None, :] * DEPTH + k[:, None]
        else:
            place = matrix + k[:, None] * WIDTH + column[None, :]
        weights = tl.load(w + place, mask=is_deep[:, None] & is_column[None, :], other=0.0)
        if USES_DOT:
            total = tl.dot(vectors, weights, total, input_precision=PRECISION)
        else:
            total += tl.sum(vectors.to(REAL)[:, :, None] * weights.to(REAL)[None, :, :], axis=1)
    place = ((row * HEADS * INNER + lane) * WIDTH)[:, None] + column[None, :]
    mask = inside[:, None] & is_column[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def outer_kernel(
    limits, order, gather_x, gather_y, x, y, partial, TILES,
    HAS_ORDER: tl.constexpr, HAS_X: tl.constexpr, HAS_Y: tl.constexpr,
    HEADS: tl.constexpr, INNER: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr,
    REAL: tl.constexpr, USES_DOT: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """partial[tile] = the sum over the tile's rows of x^T y, head by head."""
    tile = (tl.program_id(0) % TILES).to(tl.int64)
    rest = tl.program_id(0) // TILES
    blocks: tl.constexpr = tl.cdiv(WIDTH, COLUMNS)
    all_blocks: tl.constexpr = tl.cdiv(DEPTH, ROWS) * blocks
    k = rest % all_blocks // blocks * ROWS + tl.arange(0, ROWS)
    column = rest % blocks * COLUMNS + tl.arange(0, COLUMNS)
    head = (rest // all_blocks).to(tl.int64)
    first, last = tl.load(limits + tile).to(tl.int64), tl.load(limits + tile + 1).to(tl.int64)
    total = tl.zeros((ROWS, COLUMNS), dtype=REAL)
    for start in range(first, last, BLOCK):
        row, inside = _rows_of(order, start, last, BLOCK, HAS_ORDER)
        left = _find(gather_x, row, inside, HAS_X) * HEADS + head
        right = _find(gather_y, row, inside, HAS_Y) * HEADS + head
        for inner in range(INNER):
            a = tl.load(
                x + ((left * INNER + inner) * DEPTH)[:, None] + k[None, :],
                mask=inside[:, None] & (k < DEPTH)[None, :],
                other=0.0,
            )
            b = tl.load(
                y + ((right * INNER + inner) * WIDTH)[:, None] + column[None, :],
                mask=inside[:, None] & (column < WIDTH)[None, :],
                other=0.0,
            )
            if USES_DOT:
                total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
            else:
                total += tl.sum(a.to(REAL)[:, :, None] * b.to(REAL)[:, None, :], axis=0)
    place = ((tile * HEADS + head) * DEPTH + k)[:, None] * WIDTH + column[None, :]
    tl.store(partial + place, total, mask=(k < DEPTH)[:, None] & (column < WIDTH)[None, :])


@triton.jit
def sum_tiles_kernel(
    first, partial, out, KINDS, SIZE: tl.constexpr, REAL: tl.constexpr, BLOCK: tl.constexpr
):
    """out[type] = the sum of partial[tile] over the type's tiles, in their order."""
    kind = (tl.program_id(0) % KINDS).to(tl.int64)
    element = tl.program_id(0) // KINDS * BLOCK + tl.arange(0, BLOCK)
    mask = element < SIZE
    begin, end = tl.load(first + kind).to(tl.int64), tl.load(first + kind + 1).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=REAL)
    for tile in range(begin, end):
        total += tl.load(partial + tile * SIZE + element, mask=mask, other=0.0)
    tl.store(out + kind * SIZE + element, total.to(out.dtype.element_ty), mask=mask)
