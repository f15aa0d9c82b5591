"""Files become cold and warm, or the benchmark is told that they do not."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.measuring.page_cache import PageCacheError, make_cold, make_warm, read_cached_bytes

PAGE = mmap.PAGESIZE


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "features"
    path.write_bytes(os.urandom(64 * PAGE + 1))
    if _is_in_memory_only(path):
        pytest.skip("the temporary directory has no disk, so nothing in it can be cold")
    return path


def _is_in_memory_only(path: Path) -> bool:
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [each for each in mounts if path.is_relative_to(each[0])]
    return max(holding, key=lambda each: len(each[0]))[1] in ("tmpfs", "ramfs")


@pytest.fixture
def file_without_disk() -> Iterator[Path]:
    descriptor = os.memfd_create("features")
    try:
        os.write(descriptor, b"1" * PAGE)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def test_what_was_just_written_is_warm(file: Path) -> None:
    assert read_cached_bytes(file) == 65 * PAGE


def test_a_file_becomes_cold_and_warm_again(file: Path) -> None:
    make_cold(file)
    assert read_cached_bytes(file) == 0
    with open(file, "rb") as opened:
        opened.read(1)
    assert 0 < read_cached_bytes(file) <= 65 * PAGE
    make_warm(file)
    assert read_cached_bytes(file) == 65 * PAGE


def test_an_empty_file_is_neither(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    make_warm(path)
    make_cold(path)
    assert read_cached_bytes(path) == 0


def test_a_file_that_stays_in_memory_is_refused(file_without_disk: Path) -> None:
    with pytest.raises(PageCacheError, match="should be cold, but 4,096 of its 4,096 bytes stay"):
        make_cold(file_without_disk)


def test_a_missing_file_is_an_ordinary_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_cached_bytes(tmp_path / "missing")
