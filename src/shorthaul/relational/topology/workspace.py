"""Memory for intermediate values, used again from call to call.

A fresh page costs microseconds the first time it is written, which for a value per pair is more than
computing it. Large values come from a pool of huge pages and return to it when nothing holds them.
"""

from __future__ import annotations

import threading
from math import prod

import torch

from shorthaul.storage import NO_LIMIT_BYTES, BufferPool

POOLED_BYTES = 256 * 1024  # below this, malloc reuses memory well enough

_lock = threading.Lock()
_pools: list[BufferPool] = []


def empty_rows(shape: tuple[int, ...], dtype: torch.dtype, is_output: bool) -> torch.Tensor:
    """An uninitialized tensor; what leaves the layer is never pooled memory."""
    size_bytes = prod(shape) * dtype.itemsize
    if is_output or size_bytes < POOLED_BYTES:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return _pool().take(size_bytes).tensor(dtype, shape)


def _pool() -> BufferPool:
    with _lock:
        if not _pools:
            _pools.append(BufferPool(NO_LIMIT_BYTES, why="values of relational layers"))
        return _pools[0]
