"""The memory engine keeps the contract, without a disk."""

from __future__ import annotations

import errno
import gc
from pathlib import Path

import pytest

from shorthaul.errors import StorageError
from shorthaul.storage import MemoryEngine, open_file
from shorthaul.storage.testing.contract import PATIENCE_SECONDS
from tests.contracts.storage_engine_contract import StorageEngineContract


class TestMemoryEngine(StorageEngineContract):
    is_on_disk = False

    def open_engine(self, **options: object) -> MemoryEngine:
        return MemoryEngine(**options)  # type: ignore[arg-type]


def test_nothing_reaches_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes(b"before")
    with MemoryEngine() as engine, open_file(path, "write") as file:
        engine.write(file, 3, b"ABCDEF").wait(PATIENCE_SECONDS)
        assert engine.content_of(file) == b"befABCDEF"
        assert path.read_bytes() == b"before"


def test_everything_opened_on_a_file_shares_its_content(tmp_path: Path) -> None:
    path = tmp_path / "content"
    with MemoryEngine() as engine, open_file(path, "write") as file:
        engine.write(file, 0, b"shared").wait(PATIENCE_SECONDS)
        with open_file(path) as other:
            target = bytearray(6)
            engine.read(other, 0, target).wait(PATIENCE_SECONDS)
            assert target == b"shared"


def test_a_file_that_is_gone_leaves_nothing_behind(tmp_path: Path) -> None:
    with MemoryEngine() as engine:
        for number in range(3):  # the file system may give each the number of the one before
            with open_file(tmp_path, "scratch") as file:
                assert len(engine.content_of(file)) == 0
                engine.write(file, 0, bytes(number + 1)).wait(PATIENCE_SECONDS)
            del file
            gc.collect()
        assert engine._contents == {}


def test_a_hole_reads_as_zeros(tmp_path: Path) -> None:
    with MemoryEngine() as engine, open_file(tmp_path, "scratch") as file:
        engine.write(file, 4, b"end").wait(PATIENCE_SECONDS)
        assert engine.content_of(file) == b"\0\0\0\0end"


def test_capacity_runs_out_like_a_disk(tmp_path: Path) -> None:
    with MemoryEngine(capacity_bytes=100) as engine, open_file(tmp_path, "scratch") as file:
        engine.write(file, 0, bytes(80)).wait(PATIENCE_SECONDS)
        with pytest.raises(StorageError) as raised:
            engine.write(file, 80, bytes(21)).wait(PATIENCE_SECONDS)
        assert raised.value.errno == errno.ENOSPC
        engine.write(file, 80, bytes(20)).wait(PATIENCE_SECONDS)
        engine.write(file, 0, bytes(100)).wait(PATIENCE_SECONDS)
