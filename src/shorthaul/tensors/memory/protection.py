"""Which of this process's memory it may write to."""

from __future__ import annotations

from pathlib import Path


def is_writable(start: int, stop: int) -> bool:
    """Whether no page from `start` to `stop` is mapped for reading only; what is not mapped counts as writable.

    >>> import ctypes
    >>> own = ctypes.create_string_buffer(8)
    >>> is_writable(ctypes.addressof(own), ctypes.addressof(own) + 8)
    True
    """
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:  # a system without it: the driver says if it minds
        return True
    for line in lines:
        addresses, allowed = line.split(maxsplit=2)[:2]
        first, last = (int(each, 16) for each in addresses.split("-"))
        if first < stop and start < last and "w" not in allowed:
            return False
    return True
