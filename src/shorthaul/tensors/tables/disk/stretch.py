"""Rows in succession: read as they lie, with nothing to plan, to sort or to place."""

from __future__ import annotations

import numpy as np
import torch

from shorthaul.storage import StorageEngine, StorageFile
from shorthaul.tensors.files.layout import DiskLayout
from shorthaul.tensors.memory.row_buffers import empty_rows

WHY = "rows in succession"
_REQUEST_BYTES = 2**20  # several at a time keep the disk's queue full


def can_read_stretch(layout: DiskLayout) -> bool:
    """Whether rows lie in the file side by side, as the user sees them."""
    size = layout.dtype.itemsize
    return (
        layout.order is None
        and layout.stored_dtype in (None, layout.dtype)
        and 0 < layout.row_bytes == layout.row_stride_bytes
        and layout.offset_bytes % size == 0
    )


def read_stretch(
    engine: StorageEngine,
    file: StorageFile,
    layout: DiskLayout,
    rows: tuple[int, int],
    end_bytes: int,
) -> tuple[torch.Tensor, int]:
    """The rows from the first number to the second, and how many bytes were read for them."""
    start, stop = rows
    count = stop - start
    # A little more than was asked, so that requests begin and end where direct ones must.
    alignment = file.alignment_bytes
    begin = layout.offset_bytes + start * layout.row_bytes
    end = begin + count * layout.row_bytes
    first = begin // alignment * alignment
    last = min(-(-end // alignment) * alignment, end_bytes)
    memory = empty_rows((last - first,), torch.uint8)
    positions = np.arange(0, last - first, _REQUEST_BYTES, dtype=np.int64)
    lengths = np.minimum(_REQUEST_BYTES, last - first - positions)
    engine.read_many(file, first + positions, lengths, memory, positions, why=WHY).wait()
    wanted = memory[begin - first : end - first]
    return wanted.view(layout.dtype).view(count, *layout.shape[1:]), last - first
