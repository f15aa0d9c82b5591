"""Telling the kernel how a table's memory will be used."""

from __future__ import annotations

import ctypes
import mmap

import torch

from shorthaul.errors import RowArgumentError

ADVICE = {
    "random": mmap.MADV_RANDOM,  # no read-ahead: for arrays mapped from files
    "sequential": mmap.MADV_SEQUENTIAL,
    "will_need": mmap.MADV_WILLNEED,
    "huge_pages": mmap.MADV_HUGEPAGE,  # fewer faults and fewer misses in the page tables
    "normal": mmap.MADV_NORMAL,
}


def advise_memory(plain: torch.Tensor, advice: str) -> bool:
    """Advise about the whole pages that lie inside the tensor; false when the kernel refuses.

    >>> advise_memory(torch.zeros(1 << 20), "random")
    True
    """
    if advice not in ADVICE:
        raise RowArgumentError("advice", f"one of {', '.join(ADVICE)}", repr(advice))
    steps = zip(plain.shape, plain.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    page = mmap.PAGESIZE
    start = -(-plain.data_ptr() // page) * page
    stop = (plain.data_ptr() + (last + 1) * plain.dtype.itemsize) // page * page
    if plain.numel() == 0 or stop <= start:
        return True
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    return bool(madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), ADVICE[advice]) == 0)
