"""Cold or warm: whether a file's bytes lie in the kernel's page cache before an arm runs.

A read benchmark without this says nothing. A virtual machine's host may hold the file all the same,
which no guest can see: say so beside the figures.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


class PageCacheError(OSError):
    """A file cannot be brought into the state that a benchmark promises."""


def read_cached_bytes(path: Path) -> int:
    """How many of the file's bytes are in the page cache now, in whole pages."""
    length_bytes = path.stat().st_size
    if length_bytes == 0:
        return 0
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        address = _libc.mmap(None, length_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
        try:
            pages = -(-length_bytes // mmap.PAGESIZE)
            flags = ctypes.create_string_buffer(pages)
            if _libc.mincore(address, length_bytes, flags) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
        finally:
            _libc.munmap(address, length_bytes)
    finally:
        os.close(descriptor)
    return sum(flag & 1 for flag in flags.raw) * mmap.PAGESIZE


def make_cold(path: Path) -> None:
    """Drop the file from the page cache, or raise `PageCacheError` where that does not work."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)  # a page that is still to be written is not dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    left_bytes = read_cached_bytes(path)
    if left_bytes:
        raise PageCacheError(
            f"{path} should be cold, but {left_bytes:,} of its {path.stat().st_size:,} bytes stay "
            "in the page cache: it is mapped by a process, or its file system (tmpfs?) has no disk."
        )


def make_warm(path: Path) -> None:
    """Read the file through, so that all of it is in the page cache, or raise."""
    with open(path, "rb", buffering=0) as file:
        while file.read(2**20):
            pass
    length_bytes, cached_bytes = path.stat().st_size, read_cached_bytes(path)
    if cached_bytes < length_bytes:
        raise PageCacheError(
            f"{path} should be warm, but only {cached_bytes:,} of its {length_bytes:,} bytes are "
            "in the page cache: is it larger than the free memory?"
        )
