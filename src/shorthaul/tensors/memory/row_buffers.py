"""Where gathered rows are put: what the user gives, or memory that is used again.

A fresh tensor of 77 MB costs three times as much in page faults as the rows that are copied into
it. So large results, unless the user gives `out=`, come from a pool of huge pages, within `settings.row_buffer_bytes`; small ones,
and those beyond the pool, are ordinary tensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from shorthaul.errors import (
    BufferBudgetError,
    ReadOnlyTensorError,
    RowArgumentError,
    WaitTimeoutError,
)
from shorthaul.settings import settings
from shorthaul.storage import BufferPool
from shorthaul.storage.protection import can_write

SMALLEST_POOLED_BYTES = 2**20  # below, the C library reuses its own memory as well


def empty_rows(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialized tensor; its memory goes back to the pool when nothing refers to it."""
    length_bytes = math.prod(shape) * dtype.itemsize
    if length_bytes >= SMALLEST_POOLED_BYTES and settings.row_buffer_bytes:
        try:
            return (
                _pool(settings.row_buffer_bytes)
                .take(length_bytes, block=False)
                .tensor(dtype, shape)
            )
        except (WaitTimeoutError, BufferBudgetError):
            pass  # everything is lent out: the caller keeps many results, which is its right
    return torch.empty(tuple(shape), dtype=dtype, device="cpu")


def choose_out(
    out: torch.Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *inputs: torch.Tensor | None,
) -> torch.Tensor:
    """`out` when it fits and lies apart from all `inputs`, else pooled memory for the result.

    As with `out=` of torch's operators, a graph that still needs what `out` held before finds out
    that it was written: its version is raised.
    """
    if out is None:
        return empty_rows(shape, dtype)
    if (
        tuple(out.shape) != shape
        or out.dtype is not dtype
        or not out.is_cpu
        or not out.is_contiguous()
    ):
        raise RowArgumentError(
            "out",
            f"a contiguous CPU tensor, {dtype} of shape {shape}",
            f"{out.dtype} of shape {tuple(out.shape)}, strides {out.stride()}, on {out.device}",
        )
    _require_writable(out)
    start, stop = _span(out)
    for each in inputs:
        if each is not None and each.numel() and _touches(each, start, stop):
            raise RowArgumentError(
                "out",
                "memory that does not overlap the table, the ids or any other input",
                "memory that some of them lie in: give a tensor of its own",
            )
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)
    return out.detach()


def take_apart(tensor: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """`tensor`, or a copy of it where it has bytes of one of the table's rows.

    >>> table = torch.zeros(4, 2)
    >>> take_apart(table[1], table).data_ptr() == table[1].data_ptr()
    False
    """
    return tensor.clone() if table.numel() and _touches(table, *_span(tensor)) else tensor


def _require_writable(out: torch.Tensor) -> None:
    """Refuse memory that is not there, cannot be written or would not hold the values themselves."""
    if getattr(out, "is_read_only", False) or not can_write(out):  # of a unified tensor; a map
        raise ReadOnlyTensorError("out=", "read-only memory")
    if out.is_conj() or out.is_neg() or out._is_zerotensor():
        raise RowArgumentError(
            "out", "memory that holds the values themselves", "a conjugate, negated or zero view"
        )
    if out.requires_grad and torch.is_grad_enabled():
        raise RowArgumentError(
            "out",
            "a tensor that does not require grad",
            "one that does, where gradients are recorded",
        )
    if out.is_inference() and not torch.is_inference_mode_enabled():
        raise RowArgumentError(
            "out",
            "a tensor that autograd may know of",
            "an inference tensor outside inference mode",
        )


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of the first byte of a tensor with values, and of the one after its last."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size() if tensor.numel() else start


def _touches(tensor: torch.Tensor, start: int, stop: int) -> bool:
    """Whether some row of `tensor` has bytes from `start` to `stop`."""
    first, last = _span(tensor)
    if last <= start or stop <= first:
        return False
    if tensor.dim() == 0:
        return True
    stride_bytes = tensor.stride(0) * tensor.element_size()
    row_bytes = _span(tensor[0])[1] - first
    if stride_bytes <= row_bytes:
        return True
    # The first row that ends after `start`; between rows there is room that is not the table's.
    row = max(0, (start - first - row_bytes) // stride_bytes + 1)
    return row < tensor.shape[0] and first + row * stride_bytes < stop


@functools.lru_cache(maxsize=1)
def _pool(budget_bytes: int) -> BufferPool:
    return BufferPool(budget_bytes, why="gathered rows")
