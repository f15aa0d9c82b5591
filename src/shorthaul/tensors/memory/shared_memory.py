"""Memory that other processes map instead of copying: a file without a name, handed on by number.

>>> import torch
>>> block = SharedBlock(4096)
>>> block.tensor(torch.float32, (2, 3)).fill_(1).sum()
tensor(6.)

A forked child has the mapping already. To a spawned one, or through a queue, the descriptor travels
and is mapped anew (`multiprocessing`'s own way of passing descriptors). When the last process lets
go, the memory is gone: there is no name that could be left behind.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Sequence
from multiprocessing import reduction
from typing import Any

import numpy as np
import torch

from shorthaul.errors import UnifiedSourceError
from shorthaul.interrupts import when_gone

MAPPING_NAME = "shorthaul-table"  # as /proc/<pid>/maps shows it


class SharedBlock:
    """One piece of shared memory, all zeros when it is new."""

    def __init__(self, length_bytes: int, descriptor: int | None = None) -> None:
        self.length_bytes = length_bytes
        if descriptor is None:
            descriptor = os.memfd_create(MAPPING_NAME, os.MFD_CLOEXEC)
            try:
                os.ftruncate(descriptor, max(1, length_bytes))
            except BaseException:
                os.close(descriptor)
                raise
        self.descriptor = descriptor
        when_gone(self, os.close, descriptor)  # the mapping outlives the number: tensors hold it
        self._mapping = mmap.mmap(descriptor, max(1, length_bytes))
        self.address: int = np.frombuffer(self._mapping, np.uint8).ctypes.data
        with contextlib.suppress(OSError):  # kernels that keep huge pages from shared memory
            self._mapping.madvise(mmap.MADV_HUGEPAGE)

    def tensor(
        self,
        dtype: torch.dtype,
        shape: Sequence[int],
        *,
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> torch.Tensor:
        """A tensor that shares the memory and keeps it mapped; `offset` counts elements."""
        count = self.length_bytes // dtype.itemsize
        if count == 0:
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        flat = torch.frombuffer(self._mapping, dtype=dtype, count=count)
        if strides is None:
            return flat[offset : offset + math.prod(shape)].view(tuple(shape))
        return flat.as_strided(tuple(shape), tuple(strides), offset)

    def __reduce__(self) -> tuple[Any, ...]:
        # Only `multiprocessing` can hand a descriptor on; its pickler finds the other reducer.
        raise UnifiedSourceError(
            "pickling shared memory",
            "to happen while a process is started or through a multiprocessing queue",
            "an ordinary pickle",
        )


def _reduce_block(block: SharedBlock) -> tuple[Any, ...]:
    return _rebuild_block, (reduction.DupFd(block.descriptor), block.length_bytes)


def _rebuild_block(descriptor: Any, length_bytes: int) -> SharedBlock:
    return SharedBlock(length_bytes, descriptor.detach())


reduction.ForkingPickler.register(SharedBlock, _reduce_block)
