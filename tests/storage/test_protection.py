"""What of a process's memory may be written, by what the kernel says of it."""

import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

from shorthaul.storage import BufferPool, protection
from shorthaul.storage.protection import can_write, is_writable


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


def make_map(path: Path, mode: str) -> torch.Tensor:
    """A tensor around a map of a file."""
    path.write_bytes(bytes(4096))
    return torch.from_numpy(np.memmap(path, np.uint8, mode))  # type: ignore[call-overload]


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize(("mode", "expected"), [("r", False), ("r+", True), ("c", True)])
def test_of_a_tensor_it_is_found_out_once(tmp_path, monkeypatch, mode, expected):
    tensor = make_map(tmp_path / "pages", mode)
    assert can_write(tensor[7:]) is expected
    monkeypatch.setattr(protection, "is_writable", None)  # would be called
    assert can_write(tensor) is expected
    assert can_write(tensor[100:200].view(torch.float32)) is expected


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_storage_that_is_given_other_memory_is_looked_at_anew(tmp_path):
    tensor = make_map(tmp_path / "pages", "r")
    assert not can_write(tensor)
    tensor.set_(torch.from_numpy(np.zeros(64, np.uint8)))
    assert can_write(tensor)


def test_of_pytorchs_and_of_pooled_memory_it_is_known(monkeypatch):
    monkeypatch.setattr(protection, "is_writable", None)
    assert can_write(torch.zeros(3))
    assert can_write(torch.zeros(0))
    assert can_write(BufferPool(1 << 16, why="test").take(4096).tensor(torch.float32, (4, 4)))
