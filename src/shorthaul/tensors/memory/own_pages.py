"""New memory in pages of its own: rows begin at lines of 128 bytes, and mapping it maps nothing of others.

The C library begins its blocks 16 or 64 bytes into a line, so that a device reads five lines for a row
of four, and small blocks share a page with whatever was allocated beside them.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence

import torch


def empty_pages(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor that begins with a page; of zeros, which take no room until they are written.

    >>> tensor = empty_pages((3, 100), torch.float32)
    >>> tensor.data_ptr() % mmap.PAGESIZE, tensor.untyped_storage().nbytes()
    (0, 1200)
    """
    count = math.prod(shape)
    if count == 0:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    length_bytes = count * dtype.itemsize
    try:
        mapping = mmap.mmap(-1, length_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"there is no memory for a table of {length_bytes:,} bytes") from error
    with contextlib.suppress(OSError):  # kernels without huge pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(mapping, dtype=dtype, count=count).view(tuple(shape))
