"""The thread engine keeps the contract, and carries on after short and interrupted calls."""

from __future__ import annotations

import contextlib
import errno
import functools
from pathlib import Path

import numpy as np
import pytest

from shorthaul.errors import StorageError
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.storage import (
    BufferPool,
    Failure,
    StorageFile,
    ThreadEngine,
    Ticket,
    open_file,
)
from shorthaul.storage.testing.contract import MEBIBYTE, PATIENCE_SECONDS, content_of
from shorthaul.storage.uring_engine import RingLibrary, load_library
from tests.contracts.storage_engine_contract import StorageEngineContract
from tests.storage.injected_library import as_answers, load_injected_library


class TestThreadEngine(StorageEngineContract):
    def open_engine(self, **options: object) -> ThreadEngine:
        return ThreadEngine(**options)  # type: ignore[arg-type]


class PlainThreadEngine(ThreadEngine):
    """As where nothing can be compiled: batches are read by Python."""

    _library = None


class TestThreadEngineWithoutCompiler(StorageEngineContract):
    def open_engine(self, **options: object) -> PlainThreadEngine:
        return PlainThreadEngine(**options)  # type: ignore[arg-type]


class InjectedEngine(ThreadEngine):
    """Batches are read by a loop whose system calls answer as a test says."""

    @functools.cached_property
    def _library(self) -> RingLibrary:
        return load_injected_library()

    def inject(self, *results: int) -> None:
        self._library.read_inject(*as_answers(results))


class TestBatches:
    """What the kernel answers rarely, it answers here; a depth of 1 keeps the order."""

    def read(self, directory: Path, *results: int) -> tuple[Ticket, bytearray, bytes]:
        content = content_of(64 * 1024)
        path = directory / "content"
        path.write_bytes(content)
        target = bytearray(64 * 1024)
        places = np.arange(64) * 1024
        # Not direct: by chance the target is aligned for that, and a short answer then asks again.
        with InjectedEngine(depth=1) as engine, open_file(path, direct=False) as file:
            engine.inject(*results)
            ticket = engine.read_many(file, places, 1024, target, places)
            with contextlib.suppress(StorageError):  # raised again when the test waits
                ticket.wait(PATIENCE_SECONDS)
            return ticket, target, content

    @pytest.mark.parametrize(
        "results",
        [
            [1, 100, 0, 1023],
            [-errno.EINTR, -errno.EINTR],
            [-errno.EAGAIN, 0, -errno.EAGAIN],
        ],
        ids=["short", "interrupted", "try again"],
    )
    def test_what_can_go_on_goes_on(self, tmp_path, results):
        ticket, target, content = self.read(tmp_path, *results)
        assert ticket.result() == len(content)
        assert target == content

    def test_every_failure_is_known(self, tmp_path):
        ticket, target, content = self.read(tmp_path, 0, -errno.EIO, 100, -errno.ENXIO)
        with pytest.raises(StorageError, match="2 of 64 requests failed") as raised:
            ticket.wait(PATIENCE_SECONDS)
        assert raised.value.errno == errno.EIO
        assert ticket.failures == (
            Failure(1, 1024, 1024, 0, errno.EIO),
            Failure(2, 2048, 1024, 100, errno.ENXIO),
        )
        assert target[3072:] == content[3072:]

    def test_trying_again_ends(self, tmp_path):
        ticket, *_ = self.read(tmp_path, *[-errno.EAGAIN] * 1000)
        with pytest.raises(StorageError) as raised:
            ticket.wait(PATIENCE_SECONDS)
        assert raised.value.errno == errno.EAGAIN

    def test_a_direct_call_that_is_refused_is_made_buffered_and_said(self, tmp_path, caplog):
        path = tmp_path / "content"
        path.write_bytes(content_of(8192))
        with (
            InjectedEngine(depth=1) as engine,
            open_file(path) as file,
            BufferPool("1MiB") as pool,
        ):
            if not file.is_direct:
                pytest.skip("no direct requests here")
            target = pool.take(8192)
            engine.inject(-errno.EINVAL)
            assert engine.read_many(file, [0, 4096], 4096, target, [0, 4096]).result() == 8192
            assert target.memory.tobytes() == content_of(8192)
            assert not file.is_direct
        assert "using buffered requests" in caplog.text


def test_without_a_compiler_batches_go_through_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    load_library.cache_clear()
    try:
        with ThreadEngine() as engine, open_file(tmp_path, "scratch") as file:
            engine.write(file, 0, content_of(100)).wait(PATIENCE_SECONDS)
            target = bytearray(20)
            engine.read_many(file, [0, 50], 10, target, [0, 10]).wait(PATIENCE_SECONDS)
            assert target == content_of(100)[:10] + content_of(100)[50:60]
    finally:
        load_library.cache_clear()
    assert "batches of the thread engine" in {each.what for each in taken_fallbacks()}


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
