"""Every fault over every engine: what comes out, and that the engine goes on."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shorthaul.errors import (
    EngineClosedError,
    EngineUnavailableError,
    ShortReadError,
    StorageError,
    WaitTimeoutError,
)
from shorthaul.storage import (
    Fault,
    FaultyEngine,
    MemoryEngine,
    StorageEngine,
    ThreadEngine,
    UringEngine,
    faulty_engine,
    open_file,
    throttled_engine,
)
from shorthaul.storage.testing.contract import PATIENCE_SECONDS, content_of
from tests.contracts.storage_engine_contract import StorageEngineContract

LENGTH = 10_000


class TestFaultyThreads(StorageEngineContract):
    def open_engine(self, **options: object) -> FaultyEngine:
        return FaultyEngine(ThreadEngine(), [], **options)  # type: ignore[arg-type]


class TestFaultyMemory(StorageEngineContract):
    is_on_disk = False

    def open_engine(self, **options: object) -> FaultyEngine:
        return FaultyEngine(MemoryEngine(), [], **options)  # type: ignore[arg-type]


def _open_uring() -> StorageEngine:
    try:
        return UringEngine()
    except EngineUnavailableError as error:
        pytest.skip(error.reason)


ENGINES: dict[str, Callable[[], StorageEngine]] = {
    "uring": _open_uring,
    "thread": ThreadEngine,
    "memory": MemoryEngine,
    "throttled": lambda: throttled_engine(MemoryEngine(), 1e9),
    "faulty": lambda: faulty_engine(MemoryEngine(), []),
}


@pytest.mark.parametrize("inner", ENGINES)
class TestEveryFaultOnEveryEngine:
    """The second request of each action goes wrong; the others do not."""

    def run(self, inner: str, directory: Path, fault: Fault, check) -> None:
        with (
            faulty_engine(ENGINES[inner](), [fault]) as engine,
            open_file(directory, "scratch") as file,
        ):
            engine.write(file, 0, content_of(3 * LENGTH)).wait(PATIENCE_SECONDS)
            engine.read(file, 0, bytearray(10)).wait(PATIENCE_SECONDS)
            check(engine, file)
            target = bytearray(LENGTH)
            engine.write(file, 4 * LENGTH, content_of(LENGTH)).wait(PATIENCE_SECONDS)
            engine.read(file, 4 * LENGTH, target).wait(PATIENCE_SECONDS)
            assert target == content_of(LENGTH), "later requests are untouched"

    @pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.ENXIO])
    @pytest.mark.parametrize("action", ["read", "write"])
    def test_errno(self, inner, tmp_path, action, code):
        def check(engine, file):
            before = bytearray(b"\xee" * LENGTH)
            ticket = getattr(engine, action)(file, 512, before)
            with pytest.raises(StorageError) as raised:
                ticket.wait(PATIENCE_SECONDS)
            assert raised.value.errno == code
            assert (raised.value.offset_bytes, raised.value.length_bytes) == (512, LENGTH)
            assert raised.value.action == action
            assert before == b"\xee" * LENGTH

        self.run(inner, tmp_path, Fault("errno", 2, action, code=code), check)

    @pytest.mark.parametrize("moved", [0, 1, 4096, LENGTH + 5])
    def test_short_read(self, inner, tmp_path, moved):
        def check(engine, file):
            target = bytearray(b"\xee" * LENGTH)
            with pytest.raises(ShortReadError) as raised:
                engine.read(file, 512, target).wait(PATIENCE_SECONDS)
            got = raised.value.got_bytes
            assert got == min(moved, LENGTH - 1)
            assert target[:got] == content_of(3 * LENGTH)[512 : 512 + got]
            assert target[got:] == b"\xee" * (LENGTH - got)

        self.run(inner, tmp_path, Fault("short", 2, "read", moved_bytes=moved), check)

    def test_short_write(self, inner, tmp_path):
        def check(engine, file):
            with pytest.raises(StorageError, match=r"4,096 of 10,000 bytes were written") as raised:
                engine.write(file, 0, bytes(LENGTH)).wait(PATIENCE_SECONDS)
            assert raised.value.errno == errno.EIO

        self.run(inner, tmp_path, Fault("short", 2, "write", moved_bytes=4096), check)

    def test_flip_on_reading(self, inner, tmp_path):
        def check(engine, file):
            target = bytearray(LENGTH)
            assert engine.read(file, 0, target).result() == LENGTH
            wrong = np.frombuffer(target, np.uint8) ^ np.frombuffer(
                content_of(3 * LENGTH)[:LENGTH], np.uint8
            )
            assert np.flatnonzero(wrong).tolist() == [12]
            assert wrong[12] == 1 << 5

        self.run(inner, tmp_path, Fault("flip", 2, "read", bit=12 * 8 + 5), check)

    def test_flip_on_writing(self, inner, tmp_path):
        def check(engine, file):
            source, target = bytearray(LENGTH), bytearray(LENGTH)
            engine.write(file, 0, source).wait(PATIENCE_SECONDS)
            assert source == bytes(LENGTH), "the caller's memory is not touched"
            engine.read(file, 0, target).wait(PATIENCE_SECONDS)
            assert [place for place, value in enumerate(target) if value] == [3]

        self.run(inner, tmp_path, Fault("flip", 2, "write", bit=3 * 8), check)

    def test_slow(self, inner, tmp_path):
        def check(engine, file):
            target = bytearray(LENGTH)
            ticket = engine.read(file, 0, target)
            with pytest.raises(WaitTimeoutError):
                ticket.wait(0.01)
            ticket.wait(PATIENCE_SECONDS)
            assert target == content_of(3 * LENGTH)[:LENGTH]

        self.run(inner, tmp_path, Fault("slow", 2, "read", seconds=0.3), check)

    def test_hang_until_released(self, inner, tmp_path):
        def check(engine, file):
            target = bytearray(LENGTH)
            ticket = engine.read(file, 0, target)
            other = engine.read(file, 0, bytearray(10))
            other.wait(PATIENCE_SECONDS)
            assert not ticket.done
            assert not engine.cancel(ticket), "it has started"
            engine.release_hung()
            ticket.wait(PATIENCE_SECONDS)
            assert target == content_of(3 * LENGTH)[:LENGTH]

        self.run(inner, tmp_path, Fault("hang", 2, "read"), check)

    def test_hang_until_closed(self, inner, tmp_path):
        engine = faulty_engine(ENGINES[inner](), [Fault("hang")])
        with open_file(tmp_path, "scratch") as file:
            ticket = engine.write(file, 0, bytes(LENGTH))
            raised: list[Exception] = []

            def wait() -> None:
                try:
                    ticket.wait(PATIENCE_SECONDS)
                except EngineClosedError as error:
                    raised.append(error)

            thread = threading.Thread(target=wait)
            thread.start()
            while engine._running == 0:
                threading.Event().wait(0.001)
            engine.close()
            thread.join(PATIENCE_SECONDS)
            assert len(raised) == 1

    def test_onwards(self, inner, tmp_path):
        fault = Fault("errno", 2, "write", onwards=True, code=errno.ENOSPC)
        with (
            faulty_engine(ENGINES[inner](), [fault]) as engine,
            open_file(tmp_path, "scratch") as file,
        ):
            engine.write(file, 0, bytes(10)).wait(PATIENCE_SECONDS)
            for _ in range(3):
                with pytest.raises(StorageError):
                    engine.write(file, 0, bytes(10)).wait(PATIENCE_SECONDS)
            engine.read(file, 0, bytearray(10)).wait(PATIENCE_SECONDS)

    def test_one_range_of_a_batch(self, inner, tmp_path):
        def check(engine, file):
            target = bytearray(b"\xee" * 4096)
            places = np.arange(4) * 1024
            ticket = engine.read_many(file, places, 1024, target, places)
            with pytest.raises(StorageError, match="1 of 4 requests failed") as raised:
                ticket.wait(PATIENCE_SECONDS)
            assert (raised.value.offset_bytes, raised.value.errno) == (2048, errno.EIO)
            content = content_of(3 * LENGTH)
            assert target[:2048] == content[:2048]
            assert target[3072:] == content[3072:4096]

        self.run(inner, tmp_path, Fault("errno", 4, "read"), check)


def test_requests_are_counted_together_unless_an_action_is_named(tmp_path: Path) -> None:
    with (
        faulty_engine(MemoryEngine(), [Fault("errno", 3)]) as engine,
        open_file(tmp_path, "scratch") as file,
    ):
        engine.write(file, 0, bytes(10)).wait(PATIENCE_SECONDS)
        engine.read(file, 0, bytearray(10)).wait(PATIENCE_SECONDS)
        with pytest.raises(StorageError):
            engine.read(file, 0, bytearray(10)).wait(PATIENCE_SECONDS)
