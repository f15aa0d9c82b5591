"""Rows in another order, on their way to a file: those that are named first, then all others.

>>> rows = torch.arange(6.0).view(6, 1)
>>> torch.cat([*reorder(rows, torch.tensor([4, 1]), step_bytes=8)])[:, 0].tolist()
[4.0, 1.0, 0.0, 2.0, 3.0, 5.0]
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from shorthaul.errors import RowArgumentError, UnifiedSourceError
from shorthaul.tensors.unified_tensor import UnifiedTensor


def read_order(order: Any, source: Any, rows: int | None) -> torch.Tensor:
    """Ids of rows that come first, each of them once."""
    if rows is None:
        raise UnifiedSourceError(
            "sh.save_features",
            "a tensor or an array where rows are reordered: rows are taken from all over it",
            type(source).__qualname__,
        )
    ids = torch.as_tensor(order, device="cpu").detach()
    expected = f"different ids of {rows:,} rows, in one dimension"
    if ids.dim() != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype is torch.bool:
        raise RowArgumentError("order", expected, f"{ids.dtype} of shape {tuple(ids.shape)}")
    ids = ids.long().contiguous()
    outside = torch.nonzero((ids < 0) | (ids >= rows))
    if len(outside):
        at = int(outside[0])
        raise RowArgumentError("order", expected, f"{int(ids[at]):,} at position {at:,}")
    repeated = torch.nonzero(torch.sort(ids).values.diff() == 0)
    if len(repeated):
        twice = int(torch.sort(ids).values[int(repeated[0])])
        raise RowArgumentError("order", expected, f"{twice:,} more than once")
    return ids


def reorder(source: Any, first: torch.Tensor, step_bytes: int) -> Iterator[Any]:
    """The rows of `source` in chunks: those that `first` names, then the others as they are."""
    row_bytes = math.prod(source.shape[1:]) * source.dtype.itemsize
    step, count = max(1, step_bytes // max(1, row_bytes)), int(source.shape[0])
    for start in range(0, len(first), step):
        yield _take(source, first[start : start + step])
    is_left = torch.ones(count, dtype=torch.bool, device="cpu")
    is_left[first] = False
    for start in range(0, max(1, count), step):
        is_unified = isinstance(source, UnifiedTensor)
        part = source.read(start, start + step) if is_unified else source[start : start + step]
        own = is_left[start : start + step]
        yield part[own.numpy() if isinstance(part, np.ndarray) else own]


def _take(source: Any, ids: torch.Tensor) -> Any:
    if isinstance(source, UnifiedTensor):
        return source.gather(ids, device=ids.device)
    return source[ids.numpy() if isinstance(source, np.ndarray) else ids]
