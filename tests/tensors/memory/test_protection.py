"""What of a process's memory may be written, by what the kernel says of it."""

import mmap
from pathlib import Path

import numpy as np

from shorthaul.tensors.memory.protection import is_writable


def test_a_map_for_reading_is_told_from_one_for_writing(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    path.write_bytes(bytes(3 * mmap.PAGESIZE))
    for mode, expected in (("r", False), ("r+", True), ("c", True)):
        pages = np.memmap(path, np.uint8, mode)  # type: ignore[call-overload]
        start = pages.ctypes.data
        assert is_writable(start, start + pages.nbytes) is expected
        assert is_writable(start + mmap.PAGESIZE, start + mmap.PAGESIZE + 1) is expected


def test_what_is_not_mapped_is_left_to_the_driver() -> None:
    assert is_writable(16, 32)
