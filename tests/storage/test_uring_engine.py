"""The io_uring engine keeps the contract; its ring is tried again, continued, broken and refused."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shorthaul.errors import EngineUnavailableError, StorageError
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.settings import settings
from shorthaul.storage import BufferPool, ThreadEngine, UringEngine, open_engine, open_file
from shorthaul.storage import uring_engine as module
from shorthaul.storage.testing.contract import (
    MEBIBYTE,
    PATIENCE_SECONDS,
    content_of,
    in_child,
    paused,
)
from shorthaul.storage.uring_engine import RingLibrary
from tests.contracts.storage_engine_contract import StorageEngineContract
from tests.storage.injected_library import NOTHING_MOVED, as_answers, load_injected_library


def _why_not() -> str:
    try:
        UringEngine().close()
    except EngineUnavailableError as error:
        return error.reason
    return ""


needs_uring = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "io_uring works here")


@needs_uring
class TestUringEngine(StorageEngineContract):
    def open_engine(self, **options: object) -> UringEngine:
        return UringEngine(**options)  # type: ignore[arg-type]


class InjectedEngine(UringEngine):
    """A ring compiled so that tests can say what the next completions are."""

    def _find_library(self) -> RingLibrary:
        return load_injected_library()

    def inject(self, *results: int) -> None:
        self._library.ring_inject(self._ring, *as_answers(results))


@pytest.fixture
def injected() -> Iterator[InjectedEngine]:
    with InjectedEngine() as engine:
        yield engine


@needs_uring
def test_the_ticket_of_a_polled_engine_is_finished_by_whoever_asks(tmp_path):
    polled, listened_to = [], threading.Event()
    with UringEngine() as engine, open_file(tmp_path, "scratch") as file:
        engine.is_polled = True
        first = engine.write(file, 0, np.ones(4096, np.uint8))
        first.add_done_callback(polled.append)
        while engine.stats().in_flight_bytes:
            pass
        # The listening thread takes what ended in turn: had it heard of the first, it would tell.
        engine.is_polled = False
        second = engine.write(file, 4096, np.ones(4096, np.uint8))
        second.add_done_callback(lambda _: listened_to.set())
        assert listened_to.wait(PATIENCE_SECONDS)
        assert polled == []
        assert first.done
        assert polled == [first]


@needs_uring
def test_a_polled_ticket_that_nobody_asked_about_ends_with_its_engine(tmp_path):
    with UringEngine() as engine, open_file(tmp_path, "scratch") as file:
        engine.is_polled = True
        ticket = engine.write(file, 0, np.ones(4096, np.uint8))
        while engine.stats().in_flight_bytes:
            pass
    assert ticket.result() == 4096


@needs_uring
class TestCompletions:
    """What the kernel answers rarely, it answers here."""

    def round_trip(self, engine: InjectedEngine, directory: Path, length: int, *results: int):
        content = content_of(length)
        with open_file(directory, "scratch") as file, BufferPool("32MiB") as pool:
            source, target = pool.take(length), pool.take(length)
            source.memory[:] = np.frombuffer(content, np.uint8)
            engine.inject(*results)
            assert engine.write(file, 0, source).result() == length
            engine.inject(*results)
            assert engine.read(file, 0, target).result() == length
            assert target.memory.tobytes() == content

    @pytest.mark.parametrize("moved", [1, 512, 4096, 5000, 65_536])
    def test_short_transfers_are_continued(self, injected, tmp_path, moved):
        self.round_trip(injected, tmp_path, 200_000, *[moved] * 5)

    def test_short_transfers_of_many_pieces_are_continued(self, injected, tmp_path):
        self.round_trip(injected, tmp_path, 9 * MEBIBYTE + 5, *[100_000, 0, 7] * 10)

    @pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN])
    def test_what_may_work_the_next_time_is_tried_again(self, injected, tmp_path, code):
        self.round_trip(injected, tmp_path, 200_000, *[-code] * 6)
        assert injected.stats().failed_requests == 0

    def test_trying_again_ends(self, injected, tmp_path):
        with open_file(tmp_path, "scratch") as file:
            injected.inject(*[-errno.EAGAIN] * 1000)
            with pytest.raises(StorageError) as raised:
                injected.write(file, 0, bytes(100)).wait(PATIENCE_SECONDS)
            assert raised.value.errno == errno.EAGAIN
            injected.inject(0)
            injected.write(file, 0, bytes(100)).wait(PATIENCE_SECONDS)

    def test_a_direct_request_that_is_refused_is_made_buffered_and_said(
        self, injected, tmp_path, caplog
    ):
        with open_file(tmp_path, "scratch") as file, BufferPool("1MiB") as pool:
            if not file.is_direct:
                pytest.skip("no direct requests here")
            injected.inject(-errno.EINVAL)
            buffer = pool.take(8192)
            assert injected.write(file, 0, buffer).result() == 8192
            assert not file.is_direct
            before = injected.stats()
            injected.write(file, 0, buffer).wait(PATIENCE_SECONDS)
            assert injected.stats().direct_transfers == before.direct_transfers
        assert "using buffered requests" in caplog.text

    def test_an_error_of_the_disk_has_file_range_and_errno(self, injected, tmp_path):
        with open_file(tmp_path, "scratch") as file:
            injected.write(file, 0, bytes(10_000)).wait(PATIENCE_SECONDS)
            injected.inject(-errno.EIO)
            with pytest.raises(StorageError) as raised:
                injected.read(file, 4096, bytearray(5000), why="rows").wait(PATIENCE_SECONDS)
            assert raised.value.errno == errno.EIO
            assert (raised.value.offset_bytes, raised.value.length_bytes) == (4096, 5000)
            injected.read(file, 4096, bytearray(5000)).wait(PATIENCE_SECONDS)

    def test_every_failure_of_a_batch_is_known(self, injected, tmp_path):
        with open_file(tmp_path, "scratch") as file:
            injected.write(file, 0, content_of(64 * 512)).wait(PATIENCE_SECONDS)
            injected.inject(*[-errno.EIO] * 10)
            places = np.arange(64) * 512
            ticket = injected.read_many(file, places, 512, bytearray(64 * 512), places)
            with pytest.raises(StorageError, match="10 of 64 requests failed"):
                ticket.wait(PATIENCE_SECONDS)
            assert len(ticket.failures) == 10
            assert {each.code for each in ticket.failures} == {errno.EIO}
            assert all(each.offset_bytes == each.range_index * 512 for each in ticket.failures)

    def test_a_long_request_that_fails_is_one_failure_and_stops(self, injected, tmp_path):
        with open_file(tmp_path, "scratch") as file, BufferPool("64MiB") as pool:
            source = pool.take(40 * MEBIBYTE)
            injected.inject(*[-errno.ENOSPC] * 5)
            ticket = injected.write(file, 0, source)
            with pytest.raises(StorageError, match="Free some space"):
                ticket.wait(PATIENCE_SECONDS)
            (failure,) = ticket.failures
            assert (failure.offset_bytes, failure.length_bytes) == (0, 40 * MEBIBYTE)
            assert injected.stats().written_bytes < 40 * MEBIBYTE

    def test_a_write_that_moves_nothing_is_an_error(self, injected, tmp_path):
        with open_file(tmp_path, "scratch") as file:
            injected.inject(NOTHING_MOVED)
            with pytest.raises(StorageError) as raised:
                injected.write(file, 0, bytes(10)).wait(PATIENCE_SECONDS)
            assert raised.value.errno == errno.EIO


@needs_uring
def test_files_that_give_little_at_a_time_are_read_whole() -> None:
    """/proc answers a page or so per call: every read of it is short."""
    with UringEngine() as engine, open_file("/proc/kallsyms") as file:
        target = bytearray(300_000)
        engine.read(file, 0, target).wait(PATIENCE_SECONDS)
    assert target.count(b"\n") > 1000
    assert b"\0" not in target


@needs_uring
def test_a_long_direct_read_is_cut_into_pieces_and_a_tail(tmp_path: Path) -> None:
    content = content_of(5 * MEBIBYTE + 300)
    (tmp_path / "content").write_bytes(content)
    with (
        UringEngine(piece_bytes=MEBIBYTE) as engine,
        open_file(tmp_path / "content") as file,
        BufferPool("16MiB") as pool,
    ):
        if not file.is_direct:
            pytest.skip("no direct requests here")
        buffer = pool.take(len(content))
        engine.read(file, 0, buffer).wait(PATIENCE_SECONDS)
        assert buffer.memory.tobytes() == content
        stats = engine.stats()
    assert (stats.direct_transfers, stats.buffered_transfers) == (5, 1)


@needs_uring
def test_an_idle_engine_makes_no_system_calls(tmp_path: Path) -> None:
    with UringEngine() as engine, open_file(tmp_path, "scratch") as file:
        engine.write(file, 0, bytes(100)).wait(PATIENCE_SECONDS)
        threading.Event().wait(0.05)
        before = engine.count_enter_calls()
        threading.Event().wait(0.2)
        assert engine.count_enter_calls() == before


@needs_uring
def test_a_batch_is_submitted_in_few_system_calls(tmp_path: Path) -> None:
    with UringEngine() as engine, open_file(tmp_path, "scratch") as file:
        engine.write(file, 0, bytes(4096 * 1024)).wait(PATIENCE_SECONDS)
        places = np.arange(1024) * 4096
        before = engine.count_enter_calls()
        with paused(engine):
            ticket = engine.read_many(file, places, 4096, bytearray(4096 * 1024), places)
        ticket.wait(PATIENCE_SECONDS)
        assert engine.count_enter_calls() - before < 512


@needs_uring
def test_the_ring_closed_underneath_fails_requests_and_hangs_none(tmp_path: Path) -> None:
    with UringEngine() as engine, open_file(tmp_path, "scratch") as file:
        engine.write(file, 0, bytes(100)).wait(PATIENCE_SECONDS)
        with paused(engine):
            queued = engine.write(file, 0, bytes(100))
            os.close(engine._library.ring_descriptor(engine._ring))
        with pytest.raises(StorageError) as raised:
            queued.wait(PATIENCE_SECONDS)
        assert raised.value.errno == errno.EBADF
        with pytest.raises(StorageError, match="open another engine"):
            engine.write(file, 0, bytes(100))


@needs_uring
@pytest.mark.parametrize("is_polled", [False, True])
def test_an_error_right_after_the_ring_took_a_request_leaves_it_its_memory(is_polled, tmp_path):
    with (
        UringEngine() as engine,
        open_file(tmp_path, "scratch") as file,
        BufferPool("4MiB") as pool,
    ):
        engine.is_polled = is_polled
        engine.write(file, 0, np.ones(MEBIBYTE, np.uint8)).wait()
        taken_in = engine._hand_over

        def interrupted(*request):
            assert taken_in(*request) == 0
            raise KeyboardInterrupt

        with paused(engine):
            engine._hand_over = interrupted
            with pool.take(MEBIBYTE) as target, pytest.raises(KeyboardInterrupt):
                engine.read_many(file, [0], [MEBIBYTE], target, [0])
            engine._hand_over = taken_in
            del target
            assert pool.in_use_bytes == MEBIBYTE  # nobody else may have it: the disk writes there
            file.close()
            assert file.buffered_descriptor >= 0
        while engine.stats().in_flight_bytes:
            pass
        engine._settle_abandoned()
        assert not engine._tickets
        assert pool.in_use_bytes == 0
        assert file.buffered_descriptor < 0


@needs_uring
def test_a_signal_interrupts_waiting(tmp_path: Path) -> None:
    class AlarmError(Exception):
        pass

    def ring(number: int, frame: object) -> None:
        raise AlarmError

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with UringEngine() as engine, open_file(tmp_path, "scratch") as file:
            with paused(engine):
                ticket = engine.write(file, 0, bytes(100))
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with pytest.raises(AlarmError):
                    ticket.wait(PATIENCE_SECONDS)
            ticket.wait(PATIENCE_SECONDS)
    finally:
        signal.signal(signal.SIGALRM, before)


@needs_uring
def test_a_signal_interrupts_waiting_for_room(tmp_path: Path) -> None:
    rung: list[int] = []
    with UringEngine(in_flight_bytes=4096) as engine, open_file(tmp_path, "scratch") as file:

        def let_go(number: int, frame: object) -> None:
            rung.append(number)
            engine.resume()

        before = signal.signal(signal.SIGALRM, let_go)
        try:
            engine.pause()
            first = engine.write(file, 0, bytes(4096))
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            second = engine.write(file, 0, bytes(4096))  # only the handler makes room for it
            first.wait(PATIENCE_SECONDS)
            second.wait(PATIENCE_SECONDS)
        finally:
            signal.signal(signal.SIGALRM, before)
    assert rung == [signal.SIGALRM]


@needs_uring
@pytest.mark.parametrize(
    "options",
    [{"depth": 0}, {"depth": 5000}, {"in_flight_bytes": 0}, {"piece_bytes": 4096}],
)
def test_refuses_options_that_cannot_work(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        UringEngine(**options)  # type: ignore[arg-type]


@needs_uring
@pytest.mark.parametrize("depth", [1, 2, 3, 255, 256])
def test_any_depth_works(tmp_path: Path, depth: int) -> None:
    content = content_of(600 * 512)
    (tmp_path / "content").write_bytes(content)
    with UringEngine(depth=depth) as engine, open_file(tmp_path / "content") as file:
        target = bytearray(len(content))
        places = np.arange(600) * 512
        engine.read_many(file, places, 512, target, places).wait(PATIENCE_SECONDS)
        assert target == content


class TestChoosing:
    """`open_engine` takes what works, says so, and never replaces what was asked for by name."""

    @needs_uring
    def test_auto_takes_the_ring(self):
        with settings.override(engine="auto"), open_engine() as engine:
            assert engine.name == "uring"

    @pytest.mark.parametrize("name", ["thread", "memory"])
    def test_by_name_and_by_setting(self, name):
        with open_engine(name) as engine:
            assert engine.name == name
        with settings.override(engine=name), open_engine(depth=2) as engine:
            assert engine.name == name

    def test_an_unknown_name_is_refused(self):
        with pytest.raises(EngineUnavailableError, match="there are auto, uring, thread, memory"):
            open_engine("floppy")

    def test_without_a_compiler_threads_take_over(self, monkeypatch, caplog):
        monkeypatch.setenv("CXX", "/nowhere/c++")
        module.load_library.cache_clear()
        try:
            with settings.override(engine="auto"), open_engine() as engine:
                assert isinstance(engine, ThreadEngine)
            with pytest.raises(EngineUnavailableError, match=r"no C\+\+ compiler was found"):
                open_engine("uring")
        finally:
            module.load_library.cache_clear()
        assert any(
            each.what == "storage engine" and each.instead == "threads"
            for each in taken_fallbacks()
        )

    @needs_uring
    def test_where_io_uring_is_forbidden_threads_take_over(self):
        module.load_library()

        def work() -> None:
            _forbid_io_uring()
            with pytest.raises(EngineUnavailableError, match="io_uring is forbidden here"):
                open_engine("uring")
            with settings.override(engine="auto"), open_engine() as engine:
                assert isinstance(engine, ThreadEngine)
            assert any("forbidden" in each.reason for each in taken_fallbacks())

        in_child(work)


def _forbid_io_uring() -> None:
    """Have every io_uring_setup of this process answer EPERM, as containers do."""
    filters = (
        (0x20, 0, 0, 0),  # load the number of the system call
        (0x15, 0, 1, 425),  # io_uring_setup?
        (0x06, 0, 0, 0x00050000 | errno.EPERM),  # answer EPERM
        (0x06, 0, 0, 0x7FFF0000),  # allow
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in filters))
    program = ctypes.create_string_buffer(
        struct.pack("@HP", len(filters), ctypes.addressof(code)), 16
    )
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.c_void_p(ctypes.addressof(program))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    assert libc.prctl(22, 2, address, 0, 0) == 0  # filter system calls
