"""The thread engine keeps the contract, and carries on after short and interrupted calls."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from shorthaul.errors import StorageError
from shorthaul.storage import BufferPool, StorageFile, ThreadEngine, open_file
from tests.contracts.storage_engine_contract import (
    MEBIBYTE,
    PATIENCE_SECONDS,
    StorageEngineContract,
    content_of,
)


class TestThreadEngine(StorageEngineContract):
    def open_engine(self, **options: object) -> ThreadEngine:
        return ThreadEngine(**options)  # type: ignore[arg-type]


class HesitantEngine(ThreadEngine):
    """System calls that move little, or answer with an errno first."""

    def __init__(self, answers: list[int], largest_bytes: int) -> None:
        self.answers, self.largest_bytes = answers, largest_bytes
        super().__init__(depth=1)

    def _call(
        self,
        file: StorageFile,
        part: memoryview,
        offset_bytes: int,
        is_direct: bool,
        is_write: bool,
    ) -> int:
        if self.answers:
            code = self.answers.pop(0)
            raise OSError(code, "as told")
        if len(part) > self.largest_bytes:
            part = part[: self.largest_bytes]
        return super()._call(
            file, part, offset_bytes, is_direct and len(part) % 4096 == 0, is_write
        )


@pytest.mark.parametrize("largest_bytes", [1000, 4096, 70_000])
def test_short_calls_are_continued(tmp_path: Path, largest_bytes: int) -> None:
    content = content_of(200_000)
    with (
        HesitantEngine([], largest_bytes) as engine,
        open_file(tmp_path, "scratch") as file,
        BufferPool("1MiB") as pool,
    ):
        source, target = pool.take(200_000), pool.take(200_000)
        source.memory[:] = np.frombuffer(content, np.uint8)
        assert engine.write(file, 0, source).result() == 200_000
        assert engine.read(file, 0, target).result() == 200_000
        assert target.memory.tobytes() == content


def test_what_may_work_the_next_time_is_tried_again(tmp_path: Path) -> None:
    with (
        HesitantEngine([errno.EAGAIN] * 3, MEBIBYTE) as engine,
        open_file(tmp_path, "scratch") as file,
    ):
        assert engine.write(file, 0, bytes(5000)).result() == 5000


def test_a_direct_call_that_is_refused_is_made_buffered_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        HesitantEngine([errno.EINVAL], MEBIBYTE) as engine,
        BufferPool("1MiB") as pool,
        open_file(tmp_path, "scratch") as file,
    ):
        if not file.is_direct:
            pytest.skip("no direct requests here")
        assert engine.write(file, 0, pool.take(8192)).result() == 8192
        assert not file.is_direct
        assert file.buffered_reason == (
            "direct requests are refused, although the file opened for them"
        )
    assert "using buffered requests" in caplog.text


def test_an_error_of_the_disk_has_file_range_and_errno(tmp_path: Path) -> None:
    with (
        HesitantEngine([errno.EIO], MEBIBYTE) as engine,
        open_file(tmp_path, "scratch") as file,
        pytest.raises(StorageError) as raised,
    ):
        engine.write(file, 4096, bytes(5000)).wait(PATIENCE_SECONDS)
    assert raised.value.errno == errno.EIO
    assert (raised.value.offset_bytes, raised.value.length_bytes) == (4096, 5000)


def test_a_write_that_moves_nothing_is_an_error(tmp_path: Path) -> None:
    with (
        HesitantEngine([], 0) as engine,
        open_file(tmp_path, "scratch") as file,
        pytest.raises(StorageError) as raised,
    ):
        engine.write(file, 0, bytes(10)).wait(PATIENCE_SECONDS)
    assert raised.value.errno == errno.EIO


@pytest.mark.parametrize("options", [{"depth": 0}, {"in_flight_bytes": 0}])
def test_refuses_options_that_cannot_work(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        ThreadEngine(**options)  # type: ignore[arg-type]
