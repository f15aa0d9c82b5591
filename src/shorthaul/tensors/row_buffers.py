"""Where gathered rows are put: memory that is used again when the last tensor on it is gone.

A fresh tensor of 77 MB costs three times as much in page faults as the rows that are copied into
it. So large results come from a pool of huge pages, within `settings.row_buffer_bytes`; small ones,
and those beyond the pool, are ordinary tensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from shorthaul.errors import BufferBudgetError, WaitTimeoutError
from shorthaul.settings import settings
from shorthaul.storage import BufferPool

SMALLEST_POOLED_BYTES = 2**20  # below, the C library reuses its own memory as well


def empty_rows(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor; its memory goes back to the pool when nothing refers to it."""
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


@functools.lru_cache(maxsize=1)
def _pool(budget_bytes: int) -> BufferPool:
    return BufferPool(budget_bytes, why="gathered rows")
