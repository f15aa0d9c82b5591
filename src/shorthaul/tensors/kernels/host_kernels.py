"""The row kernels on rows in memory: generated C++, or plain torch where there is no compiler.

>>> rows = StoredRows(torch.arange(6.0).view(3, 2), torch.float32)
>>> gather(rows, torch.tensor([2, -3]))
tensor([[4., 5.],
        [0., 1.]])

Every function takes ids as the user gave them and raises `RowIndexError` before it writes anything.
"""

from __future__ import annotations

import functools

import torch

from shorthaul.errors import ReadOnlyTensorError, RowArgumentError, RowIndexError
from shorthaul.jit import Kernel, can_use_kernels, load_kernel
from shorthaul.jit.held_values import held_values, require_memory
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import kernel_threads
from shorthaul.settings import settings
from shorthaul.storage.protection import can_write
from shorthaul.tensors.kernels import plain_rows
from shorthaul.tensors.kernels.emit_rows import emit_row_copies, emit_row_products, emit_row_sums
from shorthaul.tensors.kernels.plain_rows import Reduction
from shorthaul.tensors.kernels.stored_rows import FLOATING, StoredRows
from shorthaul.tensors.memory.row_buffers import choose_out, take_apart

# Results larger than this do not stay in the caches, so they are written past them.
SMALLEST_STREAM_BYTES = 16 * 2**20
STREAM_ALIGNMENT_BYTES = 32
# As in linear.h: rows that share a pass over the weights, and the widest panel of outputs.
TILE_GROUP, MOST_PANEL_OUTPUTS = 6, 32
TILE_BYTES = 2**16  # of gathered rows, which stay in the second cache until they are multiplied


def gather(rows: StoredRows, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The rows that `ids` name, as the user sees them, in `out` or in pooled memory."""
    require_ids(ids)
    out = choose_out(out, (ids.shape[0], *rows.row_shape), rows.dtype, rows.values, ids)
    if not has_kernels(rows):
        return out.copy_(plain_rows.gather(rows, plain_ids(ids, rows.rows)))
    require_in_range(_gather_into(rows, ids.contiguous(), out), ids, rows.rows)
    return out


def gather_reduce(
    rows: StoredRows,
    pointers: torch.Tensor,
    ids: torch.Tensor,
    op: Reduction,
    weights: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The sum, mean or maximum of the rows of each segment; zeros for an empty one."""
    shape = (len(pointers) - 1, *rows.row_shape)
    weights = None if weights is None else held_values(weights.detach(), "weights")
    out = choose_out(out, shape, rows.dtype, rows.values, pointers, ids, weights)
    if not has_kernels(rows):
        whole = plain_ids(ids, rows.rows)
        return out.copy_(plain_rows.gather_reduce(rows, pointers, whole, op, weights))
    ids, pointers = ids.long().contiguous(), pointers.long().contiguous()
    if weights is not None:
        weights = weights.to(plain_rows.sum_dtype(rows.dtype)).contiguous()
    wrong = _sums(rows.values.dtype, rows.dtype).reduce_rows(
        *_table(rows, ids),
        pointers.data_ptr(),
        len(pointers) - 1,
        0 if weights is None else weights.data_ptr(),
        op == "max",
        op == "mean",
        out.data_ptr(),
    )
    require_in_range(wrong, ids, rows.rows)
    return out


def multiply_rows(
    rows: StoredRows,
    pointers: torch.Tensor,
    ids: torch.Tensor,
    gradient: torch.Tensor,
    *,
    is_mean: bool = False,
) -> torch.Tensor:
    """For each id, the scalar product of its row and the gradient of its segment.

    With `is_mean` divided by the size of the segment: the gradient of `gather_reduce` with respect
    to its weights.
    """
    if not has_kernels(rows):
        whole = plain_ids(ids, rows.rows)
        return plain_rows.multiply_rows(rows, pointers, whole, gradient, is_mean=is_mean)
    ids, pointers = ids.long().contiguous(), pointers.long().contiguous()
    gradient = held_values(gradient, "gradient").contiguous()
    out = torch.empty(len(ids), dtype=plain_rows.sum_dtype(rows.dtype), device="cpu")
    wrong = _sums(rows.values.dtype, rows.dtype).multiply_rows(
        *_table(rows, ids),
        pointers.data_ptr(),
        len(pointers) - 1,
        gradient.data_ptr(),
        is_mean,
        out.data_ptr(),
    )
    require_in_range(wrong, ids, rows.rows)
    return out


def gather_linear(
    rows: StoredRows,
    ids: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`linear` of the rows that `ids` name, gathered a few at a time into a tile in the cache."""
    require_ids(ids)
    if len(rows.row_shape) != 1 or weight.dim() != 2 or weight.shape[1] != rows.width:
        raise RowArgumentError(
            "weight",
            f"of shape (any, {rows.width}) for rows of {rows.width} values",
            f"{tuple(weight.shape)}",
        )
    weight = held_values(weight.detach(), "weight")
    bias = None if bias is None else held_values(bias.detach(), "bias")
    out = choose_out(out, (len(ids), weight.shape[0]), rows.dtype, rows.values, ids, weight, bias)
    weight = weight.to(rows.dtype).contiguous()
    bias = None if bias is None else bias.to(rows.dtype).contiguous()
    if not has_kernels(rows):
        return out.copy_(plain_rows.gather_linear(rows, plain_ids(ids, rows.rows), weight, bias))
    ids = ids.long().contiguous()
    summed = plain_rows.sum_dtype(rows.dtype)
    tile_rows = choose_tile_rows(rows.width * summed.itemsize)
    padded_outputs = len(weight) + MOST_PANEL_OUTPUTS
    workspace_values = (padded_outputs + kernel_threads() * tile_rows) * (rows.width + 1)
    workspace = torch.empty(workspace_values, dtype=summed, device="cpu")
    wrong = _products(rows.values.dtype, rows.dtype).multiply_matrix(
        *_table(rows, ids),
        weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        len(weight),
        workspace.data_ptr(),
        tile_rows,
        out.data_ptr(),
    )
    require_in_range(wrong, ids, rows.rows)
    return out


def choose_tile_rows(row_bytes: int) -> int:
    """Rows that are multiplied at a time: whole groups of six, 64 KiB where rows are that short."""
    return max(1, TILE_BYTES // max(1, row_bytes) // TILE_GROUP) * TILE_GROUP


def scatter(rows: StoredRows, ids: torch.Tensor, values: torch.Tensor) -> None:
    """Write `values` over the rows that `ids` name; of repeated ids the last one wins."""
    require_ids(ids)
    shape = (len(ids), *rows.row_shape)
    if rows.is_widened or tuple(values.shape) != shape or values.dtype is not rows.values.dtype:
        raise RowArgumentError(
            "rows that are written",
            f"{rows.values.dtype} of shape {shape}, and the table not quantized",
            f"{values.dtype} of shape {tuple(values.shape)}",
        )
    if not can_write(rows.values):
        raise ReadOnlyTensorError("scatter_", "read-only memory")
    values = held_values(values.detach(), "rows that are written")
    if not has_kernels(rows):
        plain_rows.scatter(rows, plain_ids(ids, rows.rows), values)
        return
    # What is read while the table is written must not lie in it.
    ids, values = (take_apart(each.contiguous(), rows.values) for each in (ids, values))
    wrong = _copies().scatter_rows(
        rows.values.data_ptr(),
        rows.stride_bytes,
        rows.rows,
        rows.width * rows.values.element_size(),
        ids.data_ptr(),
        ids.element_size(),
        len(ids),
        values.data_ptr(),
    )
    require_in_range(wrong, ids, rows.rows)


@outside_graphs
def place_rows(
    memory: torch.Tensor, positions_bytes: torch.Tensor, targets: torch.Tensor, out: torch.Tensor
) -> None:
    """`out[targets[i]]` = the row at byte `positions_bytes[i]` of `memory`.

    Both lists are int64 and trusted: they come from a plan, not from a user.
    """
    row_bytes = out[0].nbytes if len(out) else 0
    if len(targets) == 0 or row_bytes == 0:
        return
    if can_use_kernels("row gathers"):
        _copies().place_rows(
            memory.data_ptr(),
            positions_bytes.data_ptr(),
            targets.data_ptr(),
            len(targets),
            row_bytes,
            out.data_ptr(),
        )
        return
    flat = out.view(len(out), -1).view(torch.uint8)
    flat[targets] = memory.view(torch.uint8).as_strided(
        (memory.nbytes - row_bytes + 1, row_bytes), (1, 1)
    )[positions_bytes]


def has_kernels(rows: StoredRows) -> bool:
    """Whether generated kernels apply: to any rows whose bytes lie side by side."""
    if not rows.has_whole_rows:
        return False
    # Once they are loaded nobody looks for a compiler again: that takes as long as a small gather.
    if _copies.cache_info().currsize and settings.kernels != "torch":
        return True
    return can_use_kernels("row gathers")


def require_ids(ids: torch.Tensor) -> None:
    """Refuse what is not a list of row numbers on the CPU."""
    if ids.dim() != 1 or ids.dtype not in (torch.int32, torch.int64) or not ids.is_cpu:
        raise RowArgumentError(
            "ids",
            "a CPU tensor of one dimension, int32 or int64",
            f"{ids.dtype} of shape {tuple(ids.shape)} on {ids.device}",
        )
    require_memory(ids, "ids")


def require_in_range(wrong_position: int, ids: torch.Tensor, rows: int) -> None:
    """Raise for the position that a kernel returned, unless it is -1."""
    if wrong_position >= 0:
        raise RowIndexError(int(ids[wrong_position]), wrong_position, rows)


def plain_ids(ids: torch.Tensor, rows: int) -> torch.Tensor:
    """`ids` as int64, checked, and without negative ones."""
    whole = ids.long().contiguous()
    if len(whole) == 0:
        return whole
    smallest, largest = (int(each) for each in torch.aminmax(whole))
    if smallest < -rows or largest >= rows:
        is_wrong = (whole < -rows) | (whole >= rows)
        require_in_range(int(is_wrong.nonzero()[0, 0]), ids, rows)
    return torch.where(whole < 0, whole + rows, whole) if smallest < 0 else whole


def _gather_into(rows: StoredRows, ids: torch.Tensor, out: torch.Tensor) -> int:
    if rows.is_widened:
        wide = ids.long()
        return int(
            _sums(rows.values.dtype, rows.dtype).widen_rows(*_table(rows, wide), out.data_ptr())
        )
    row_bytes = rows.width * rows.values.element_size()
    is_aligned = not (row_bytes | out.data_ptr()) % STREAM_ALIGNMENT_BYTES
    return int(
        _copies().gather_rows(
            rows.values.data_ptr(),
            rows.stride_bytes,
            rows.rows,
            row_bytes,
            ids.data_ptr(),
            ids.element_size(),
            ids.shape[0],
            out.data_ptr(),
            is_aligned and out.nbytes >= SMALLEST_STREAM_BYTES,
        )
    )


def _table(rows: StoredRows, ids: torch.Tensor) -> tuple[int, ...]:
    """What every kernel on numbers begins with."""
    return (
        rows.values.data_ptr(),
        rows.stride_bytes,
        rows.rows,
        rows.width,
        0 if rows.scales is None else rows.scales.data_ptr(),
        ids.data_ptr(),
        len(ids),
    )


@functools.cache
def _copies() -> Kernel:
    return load_kernel(emit_row_copies())


@functools.cache
def _sums(stored: torch.dtype, seen: torch.dtype) -> Kernel:
    if seen not in FLOATING:
        raise RowArgumentError("a table that is reduced", "of floating-point rows", str(seen))
    return load_kernel(emit_row_sums(stored, seen))


@functools.cache
def _products(stored: torch.dtype, seen: torch.dtype) -> Kernel:
    if seen not in FLOATING:
        raise RowArgumentError("a table that is multiplied", "of floating-point rows", str(seen))
    return load_kernel(emit_row_products(stored, seen))
