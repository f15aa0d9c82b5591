# Constants are upper case, as in Triton's own kernels; Triton's decorator has no types.
# ruff: noqa: N803, N806
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The same convolution on CUDA: implicit GEMM in window order, written in Triton.

A window is never stored: each tile of the GEMM computes where its values lie. The K dimension is
flattened in the order (kw, kd, kh, channel), as in the CPU's strips, so an image of three channels
fills a tile as well as one of 64. Every dimension is masked, so sizes need not fit the tiles, and
sums have one fixed order: results do not depend on how many programs run at once.

Correctness is tested with Triton's interpreter, and that the kernels compile for sm_80 and sm_90;
their speed has not been measured, so PyTorch's cuDNN computes on CUDA unless SHORTHAUL_KERNELS is
`generated`.
"""

import triton
import triton.language as tl


@triton.jit
def _find_place(ROW_TILES, COLUMN_TILES):
    """Which tile of rows, which tile of columns and what else a program of a flat grid is for."""
    program = tl.program_id(0)
    rest = program // ROW_TILES
    return program % ROW_TILES, rest % COLUMN_TILES, rest // COLUMN_TILES


@triton.jit
def _rows_of(tile, ROWS: tl.constexpr, IS_WIDE: tl.constexpr):
    """The pixels of a tile; as 64-bit numbers only where there are more than 32 bits count."""
    if IS_WIDE:
        tile = tile.to(tl.int64)
    return tile * ROWS + tl.arange(0, ROWS)


@triton.jit
def _find_pixel(row, D, H, W):
    """Image, depth, height and width of a pixel; no product of sizes, which 32 bits may not hold."""
    line = row // W
    plane = line // H
    return plane // D, plane % D, line % H, row % W


@triton.jit
def _source(position, size, MODE: tl.constexpr):
    """Where a padded position comes from; outside 0 to size - 1 for a zero (`source_index`)."""
    if MODE == 1:  # reflect
        position = tl.where(position < 0, -position, position)
        position = tl.where(position >= size, 2 * (size - 1) - position, position)
    elif MODE == 2:  # replicate
        position = tl.minimum(tl.maximum(position, 0), size - 1)
    elif MODE == 3:  # circular
        position = tl.where(position < 0, position + size, position)
        position = tl.where(position >= size, position - size, position)
    elif MODE == 4:  # symmetric
        position = tl.where(position < 0, -position - 1, position)
        position = tl.where(position >= size, 2 * size - 1 - position, position)
    return position


@triton.jit
def _activate(value, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        # Not maximum(): a NaN stays a NaN.
        value = tl.where(value < 0, 0.0, value)
    elif ACTIVATION == "relu6":
        value = tl.where(value < 0, 0.0, value)
        value = tl.where(value > 6, 6.0, value)
    elif ACTIVATION == "hardswish":
        value = value * tl.minimum(tl.maximum(value + 3.0, 0.0), 6.0) / 6.0
    elif ACTIVATION == "silu":
        value = value / (1.0 + tl.exp(-value))
    elif ACTIVATION == "gelu":
        value = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
    elif ACTIVATION == "sigmoid":
        value = 1.0 / (1.0 + tl.exp(-value))
    elif ACTIVATION == "tanh":
        value = 2.0 / (1.0 + tl.exp(-2.0 * value)) - 1.0
    return value


@triton.jit
def _window_values(
    image, row, row_mask, k, group,
    D, H, W, OUT_D, OUT_H, OUT_W,
    stride_n, stride_c, stride_d, stride_h, stride_w,
    CHANNELS: tl.constexpr, KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """A tile of windows: value `k` (columns) of the window of output pixel `row` (rows)."""
    n, out_d, out_h, out_w = _find_pixel(row, OUT_D, OUT_H, OUT_W)
    channel = k % CHANNELS
    kh = k // CHANNELS % KH
    kd = k // (CHANNELS * KH) % KD
    kw = k // (CHANNELS * KH * KD)
    d = _source((out_d * SD - PD)[:, None] + (kd * DD)[None, :], D, MODE)
    h = _source((out_h * SH - PH)[:, None] + (kh * DH)[None, :], H, MODE)
    w = _source((out_w * SW - PW)[:, None] + (kw * DW)[None, :], W, MODE)
    inside = (d >= 0) & (d < D) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
    inside = inside & row_mask[:, None] & (kw < KW)[None, :]
    offset = (
        n.to(tl.int64)[:, None] * stride_n
        + (group * CHANNELS + channel).to(tl.int64)[None, :] * stride_c
        + d.to(tl.int64) * stride_d
        + h.to(tl.int64) * stride_h
        + w.to(tl.int64) * stride_w
    )
    return tl.load(image + offset, mask=inside, other=0.0)


@triton.jit
def _pixel_offset(row, D, H, W, stride_n, stride_d, stride_h, stride_w):
    """Where pixel `row` (counted over images, depth, height, width) lies, without the channel."""
    n, d, h, w = _find_pixel(row, D, H, W)
    start = n.to(tl.int64) * stride_n + d.to(tl.int64) * stride_d
    return start + h.to(tl.int64) * stride_h + w.to(tl.int64) * stride_w


@triton.jit
def forward_kernel(
    image, weight, bias, residual, output,
    PIXELS, ROW_TILES, COLUMN_TILES, D, H, W, OUT_D, OUT_H, OUT_W,
    in_n, in_c, in_d, in_h, in_w, out_n, out_c, out_d, out_h, out_w,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, MODE: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, IS_WIDE: tl.constexpr,
):  # fmt: skip
    """output[pixel, channel] = activation(sum over k of window[pixel, k] * weight[k, channel] + ...)."""
    row_tile, column_tile, group = _find_place(ROW_TILES, COLUMN_TILES)
    row = _rows_of(row_tile, ROWS, IS_WIDE)
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    row_mask = row < PIXELS
    column_mask = column < OUTPUTS
    K: tl.constexpr = CHANNELS * KD * KH * KW
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, K, DEPTH):
        k = start + tl.arange(0, DEPTH)
        windows = _window_values(
            image, row, row_mask, k, group, D, H, W, OUT_D, OUT_H, OUT_W,
            in_n, in_c, in_d, in_h, in_w, CHANNELS, KD, KH, KW, SD, SH, SW, DD, DH, DW,
            PD, PH, PW, MODE,
        )  # fmt: skip
        filters = tl.load(
            weight + (group * K + k).to(tl.int64)[:, None] * OUTPUTS + column[None, :],
            mask=(k < K)[:, None] & column_mask[None, :],
            other=0.0,
        )
        total = tl.dot(windows, filters, total, input_precision=PRECISION)
    channel = group * OUTPUTS + column
    if HAS_BIAS:
        total += tl.load(bias + channel, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    offset = (
        _pixel_offset(row, OUT_D, OUT_H, OUT_W, out_n, out_d, out_h, out_w)[:, None]
        + channel.to(tl.int64)[None, :] * out_c
    )
    mask = row_mask[:, None] & column_mask[None, :]
    if HAS_RESIDUAL:
        total += tl.load(residual + offset, mask=mask, other=0.0).to(tl.float32)
    total = _activate(total, ACTIVATION)
    tl.store(output + offset, total.to(output.dtype.element_ty), mask=mask)


@triton.jit
def grad_input_kernel(
    gradient, weight, grad_input,
    PIXELS, ROW_TILES, COLUMN_TILES, D, H, W, OUT_D, OUT_H, OUT_W,
    in_n, in_c, in_d, in_h, in_w, out_n, out_c, out_d, out_h, out_w,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, IS_WIDE: tl.constexpr,
):  # fmt: skip
    """grad_input[pixel, channel]: the windows that cover a pixel, times the weights that met it."""
    row_tile, column_tile, group = _find_place(ROW_TILES, COLUMN_TILES)
    row = _rows_of(row_tile, ROWS, IS_WIDE)
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    row_mask = row < PIXELS
    column_mask = column < CHANNELS
    n, d, h, w = _find_pixel(row, D, H, W)
    K: tl.constexpr = OUTPUTS * KD * KH * KW
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, K, DEPTH):
        k = start + tl.arange(0, DEPTH)
        output = k % OUTPUTS
        kh = k // OUTPUTS % KH
        kd = k // (OUTPUTS * KH) % KD
        kw = k // (OUTPUTS * KH * KD)
        # Output position times stride; only exact multiples of the stride are windows.
        at_d = (d + PD)[:, None] - (kd * DD)[None, :]
        at_h = (h + PH)[:, None] - (kh * DH)[None, :]
        at_w = (w + PW)[:, None] - (kw * DW)[None, :]
        inside = (at_d >= 0) & (at_h >= 0) & (at_w >= 0)
        inside = inside & (at_d < OUT_D * SD) & (at_h < OUT_H * SH) & (at_w < OUT_W * SW)
        inside = inside & (at_d % SD == 0) & (at_h % SH == 0) & (at_w % SW == 0)
        offset = (
            n.to(tl.int64)[:, None] * out_n
            + (group * OUTPUTS + output).to(tl.int64)[None, :] * out_c
            + (at_d // SD).to(tl.int64) * out_d
            + (at_h // SH).to(tl.int64) * out_h
            + (at_w // SW).to(tl.int64) * out_w
        )
        arrived = tl.load(
            gradient + offset, mask=inside & row_mask[:, None] & (k < K)[None, :], other=0.0
        )
        filters = tl.load(
            weight + (group * K + k).to(tl.int64)[:, None] * CHANNELS + column[None, :],
            mask=(k < K)[:, None] & column_mask[None, :],
            other=0.0,
        )
        total = tl.dot(arrived, filters, total, input_precision=PRECISION)
    offset = (
        _pixel_offset(row, D, H, W, in_n, in_d, in_h, in_w)[:, None]
        + (group * CHANNELS + column).to(tl.int64)[None, :] * in_c
    )
    mask = row_mask[:, None] & column_mask[None, :]
    tl.store(grad_input + offset, total.to(grad_input.dtype.element_ty), mask=mask)


@triton.jit
def grad_weight_kernel(
    gradient, image, parts,
    PIXELS, K_TILES, COLUMN_TILES, D, H, W, OUT_D, OUT_H, OUT_W, GROUPS, PART_PIXELS,
    in_n, in_c, in_d, in_h, in_w, out_n, out_c, out_d, out_h, out_w,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, MODE: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, IS_WIDE: tl.constexpr,
):  # fmt: skip
    """First pass: parts[part, k, channel] = sum over the part's pixels of window * gradient."""
    k_tile, column_tile, rest = _find_place(K_TILES, COLUMN_TILES)
    k = k_tile * ROWS + tl.arange(0, ROWS)
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    part = rest // GROUPS
    group = rest % GROUPS
    column_mask = column < OUTPUTS
    K: tl.constexpr = CHANNELS * KD * KH * KW
    first = part * PART_PIXELS
    if IS_WIDE:
        first = part.to(tl.int64) * PART_PIXELS
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, PART_PIXELS, DEPTH):
        row = first + start + tl.arange(0, DEPTH)
        row_mask = row < PIXELS
        windows = _window_values(
            image, row, row_mask, k, group, D, H, W, OUT_D, OUT_H, OUT_W,
            in_n, in_c, in_d, in_h, in_w, CHANNELS, KD, KH, KW, SD, SH, SW, DD, DH, DW,
            PD, PH, PW, MODE,
        )  # fmt: skip
        offset = (
            _pixel_offset(row, OUT_D, OUT_H, OUT_W, out_n, out_d, out_h, out_w)[:, None]
            + (group * OUTPUTS + column).to(tl.int64)[None, :] * out_c
        )
        arrived = tl.load(
            gradient + offset, mask=row_mask[:, None] & column_mask[None, :], other=0.0
        )
        total = tl.dot(tl.trans(windows), arrived, total, input_precision=PRECISION)
    place = (rest.to(tl.int64) * K + k)[:, None] * OUTPUTS + column[None, :]
    tl.store(parts + place, total, mask=(k < K)[:, None] & column_mask[None, :])


@triton.jit
def sum_parts_kernel(parts, output, COUNT, VALUES, BLOCK: tl.constexpr):
    """Second pass: the parts summed in their order."""
    value = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = value < VALUES
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    place = value
    for _ in range(COUNT):
        total += tl.load(parts + place, mask=mask, other=0.0)
        place += VALUES
    tl.store(output + value, total.to(output.dtype.element_ty), mask=mask)
