"""Pages that change their address, and nothing else."""

from __future__ import annotations

import mmap

import numpy as np

from shorthaul.storage.page_moves import move_pages

PAGE_BYTES = mmap.PAGESIZE


def _memory(pages: int) -> np.ndarray:
    mapping = mmap.mmap(-1, pages * PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(mapping, np.uint8)


def test_the_target_has_the_bytes_and_the_source_stays_readable():
    source, target = _memory(4), _memory(4)
    source[:] = np.arange(4).repeat(PAGE_BYTES)
    target[:] = 9
    moved = move_pages(
        source.ctypes.data + PAGE_BYTES, target.ctypes.data + 2 * PAGE_BYTES, 2 * PAGE_BYTES
    )
    assert moved
    assert target[::PAGE_BYTES].tolist() == [9, 9, 1, 2]
    assert source[::PAGE_BYTES].tolist() == [0, 0, 0, 3]
    source[PAGE_BYTES] = 5
    assert target[2 * PAGE_BYTES] == 1


def test_what_is_not_a_page_is_not_moved():
    source, target = _memory(2), _memory(2)
    source[:] = 3
    assert not move_pages(source.ctypes.data + 64, target.ctypes.data, PAGE_BYTES)
    assert (source == 3).all()
