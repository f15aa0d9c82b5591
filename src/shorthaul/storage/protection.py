"""Which of this process's memory it may write to."""

from __future__ import annotations

from pathlib import Path

import torch

# PyTorch keeps the Python object of a storage, and so what is remembered on it, for as long as the storage.
_REMEMBERED = "_shorthaul_can_write"


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


def can_write(tensor: torch.Tensor) -> bool:
    """Whether the process may write to the memory of a CPU tensor; found out once per storage.

    PyTorch's own memory can be written to. Other memory, as that of a file mapped for reading, cannot
    always, and nothing about the tensor says so:

    >>> can_write(torch.zeros(2))
    True
    """
    storage = tensor.untyped_storage()
    if storage.resizable():  # allocated by PyTorch
        return True
    place = storage.data_ptr(), storage.nbytes()
    known: tuple[tuple[int, int], bool] | None = getattr(storage, _REMEMBERED, None)
    if known is None or known[0] != place:
        start, length_bytes = place
        known = place, is_writable(start, start + length_bytes)
        setattr(storage, _REMEMBERED, known)
    return known[1]


def remember_writable(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, of which `can_write` need not find out that its memory can be written to."""
    storage = tensor.untyped_storage()
    setattr(storage, _REMEMBERED, ((storage.data_ptr(), storage.nbytes()), True))
    return tensor
