"""Rows of a file as memory that is mapped: pages are read when they are touched, and shared by processes."""

from __future__ import annotations

import mmap

import numpy as np
import torch

from shorthaul.tensors.files.layout import DiskLayout


def can_map(layout: DiskLayout) -> bool:
    """Whether rows lie side by side, as the user sees them."""
    is_plain = layout.order is None and layout.stored_dtype in (None, layout.dtype)
    return (is_plain and layout.row_stride_bytes == layout.row_bytes) or layout.shape[0] == 0


def map_rows(layout: DiskLayout, *, is_random: bool = False) -> torch.Tensor:
    """The table that `can_map`; what is written changes this process's alone.

    Pages that are read at random (`is_random`) are read without those around them.
    """
    count_bytes = layout.shape[0] * layout.row_bytes
    if count_bytes == 0:
        return torch.empty(layout.shape, dtype=layout.dtype, device="cpu")
    mapped = np.memmap(layout.path, np.uint8, "c", layout.offset_bytes, (count_bytes,))
    if is_random:
        mapped._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
    return torch.from_numpy(mapped).view(layout.dtype).view(layout.shape)
