"""What every storage engine must do; each engine's tests subclass this. Needs pytest.

Nothing here depends on speed: where a request must be seen waiting, the engine is paused, as it is
before a fork.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from shorthaul.errors import (
    CancelledError,
    EngineClosedError,
    ForkedTicketError,
    ShortReadError,
    StorageError,
    WaitTimeoutError,
)
from shorthaul.meter import meter
from shorthaul.storage import (
    BufferPool,
    Priority,
    StorageEngine,
    StorageFile,
    Ticket,
    open_file,
)

MEBIBYTE = 2**20
PATIENCE_SECONDS = 20  # for what must happen; never reached when it does


def content_of(length_bytes: int, seed: int = 0) -> bytes:
    """Bytes that differ everywhere, so that a shifted or repeated block shows."""
    return np.random.default_rng(seed).bytes(length_bytes)


@contextlib.contextmanager
def paused(engine: StorageEngine) -> Iterator[None]:
    """Nothing is started inside the block: what is submitted stays queued."""
    engine.pause()
    try:
        yield
    finally:
        engine.resume()


def wait_until(is_so: Callable[[], bool]) -> None:
    """Return when it is so; fail when that takes too long."""
    stop = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < stop
        time.sleep(0.001)


def in_child(work: Callable[[], None]) -> None:
    """Run `work` in a forked child, and fail with its traceback if it fails."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(PATIENCE_SECONDS)
            work()
            code = 0
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-60_000:])
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        report = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert status == 0, report or f"the child ended with status {status}"


class StorageEngineContract:
    """Subclasses say how to open the engine, and whether it reaches a disk."""

    is_on_disk = True

    def open_engine(self, **options: object) -> StorageEngine:
        raise NotImplementedError

    @pytest.fixture
    def engine(self) -> Iterator[StorageEngine]:
        with self.open_engine() as engine:
            yield engine

    @pytest.fixture
    def scratch(self, tmp_path: Path) -> Iterator[StorageFile]:
        with open_file(tmp_path, "scratch") as file:
            yield file

    def file_with(self, directory: Path, content: bytes) -> StorageFile:
        path = directory / "content"
        path.write_bytes(content)
        return open_file(path)

    def read_back(self, engine: StorageEngine, file: StorageFile, length_bytes: int) -> bytes:
        target = bytearray(length_bytes)
        engine.read(file, 0, target).wait(PATIENCE_SECONDS)
        return bytes(target)

    # Reading

    @pytest.mark.parametrize(
        ("offset", "length"),
        [
            (0, 4096),
            (4096, 8192),
            (512, 512),
            (1, 1),
            (4095, 2),
            (511, 4099),
            (0, 3 * MEBIBYTE + 77),
            (8192, 2 * MEBIBYTE + 4096),
            (3 * MEBIBYTE + 70, 7),
        ],
    )
    def test_reads_exactly_the_range(self, engine, tmp_path, offset, length):
        content = content_of(3 * MEBIBYTE + 77)
        with self.file_with(tmp_path, content) as file, BufferPool("16MiB") as pool:
            buffer = pool.take(length + 64)
            buffer.memory[:] = 0xEE
            ticket = engine.read(file, offset, buffer.memory[:length])
            assert ticket.result() == length
            assert bytes(buffer.memory[:length]) == content[offset : offset + length]
            assert set(buffer.memory[length:].tolist()) == {0xEE}, "nothing beyond the target"

    def test_reads_into_anything_that_is_memory(self, engine, tmp_path):
        content = content_of(8192)
        with self.file_with(tmp_path, content) as file, BufferPool("1MiB") as pool:
            targets = {
                "bytearray": bytearray(8192),
                "memoryview": memoryview(bytearray(8192)),
                "array": np.zeros((4, 256), np.float64),
                "tensor": torch.zeros(2, 2048, dtype=torch.bfloat16, device="cpu"),
                "storage": torch.zeros(8192, dtype=torch.uint8, device="cpu").untyped_storage(),
                "buffer": pool.take(8192),
            }
            for target in targets.values():
                engine.read(file, 0, target).wait(PATIENCE_SECONDS)
            arrived = {
                "bytearray": bytes(targets["bytearray"]),
                "memoryview": bytes(targets["memoryview"]),
                "array": targets["array"].tobytes(),
                "tensor": targets["tensor"].view(torch.uint8).numpy().tobytes(),
                "storage": bytes(targets["storage"].tolist()),
                "buffer": targets["buffer"].memory.tobytes(),
            }
            assert [name for name, found in arrived.items() if found != content] == []

    def test_an_empty_read_is_done(self, engine, tmp_path):
        with self.file_with(tmp_path, b"abc") as file:
            assert engine.read(file, 1, bytearray()).result() == 0

    @pytest.mark.parametrize(
        "target",
        [
            b"1234",
            np.zeros((4, 4), np.uint8)[:, 1],
            torch.zeros(4, 4, dtype=torch.float32, device="cpu")[:, 1],
            5,
        ],
        ids=["read-only", "strided array", "strided tensor", "a number"],
    )
    def test_refuses_a_target_that_it_cannot_fill(self, engine, tmp_path, target):
        with (
            self.file_with(tmp_path, bytes(64)) as file,
            pytest.raises((ValueError, TypeError)),
        ):
            engine.read(file, 0, target)

    def test_refuses_a_negative_offset(self, engine, scratch):
        with pytest.raises(ValueError, match="negative"):
            engine.read(scratch, -1, bytearray(4))

    def test_refuses_a_closed_file(self, engine, tmp_path):
        file = self.file_with(tmp_path, bytes(64))
        file.close()
        with pytest.raises(ValueError, match="closed"):
            engine.read(file, 0, bytearray(4))

    # Writing

    def test_writes_what_is_read_back(self, engine, scratch):
        content = content_of(5 * MEBIBYTE + 123)
        ticket = engine.write(scratch, 0, content)
        assert ticket.result() == len(content)
        assert self.read_back(engine, scratch, len(content)) == content

    def test_an_aligned_write_from_a_buffer_comes_back(self, engine, scratch):
        with BufferPool("32MiB") as pool:
            source, target = pool.take(6 * MEBIBYTE), pool.take(6 * MEBIBYTE)
            source.memory[:] = np.frombuffer(content_of(6 * MEBIBYTE), np.uint8)
            engine.write(scratch, 8192, source).wait(PATIENCE_SECONDS)
            engine.read(scratch, 8192, target).wait(PATIENCE_SECONDS)
            assert np.array_equal(source.memory, target.memory)

    def test_writing_in_the_middle_leaves_the_neighbors(self, engine, scratch):
        content = bytearray(content_of(20_000))
        engine.write(scratch, 0, content).wait(PATIENCE_SECONDS)
        for offset, length in ((4096, 4096), (5000, 300), (8191, 2), (12_288, 4097)):
            part = content_of(length, seed=offset)
            content[offset : offset + length] = part
            engine.write(scratch, offset, part).wait(PATIENCE_SECONDS)
        assert self.read_back(engine, scratch, len(content)) == content

    def test_an_empty_write_is_done(self, engine, scratch):
        assert engine.write(scratch, 10, b"").result() == 0

    def test_refuses_to_write_to_a_file_opened_for_reading(self, engine, tmp_path):
        with (
            self.file_with(tmp_path, bytes(64)) as file,
            pytest.raises(ValueError, match="opened for reading"),
        ):
            engine.write(file, 0, b"1234")

    # Batches

    def test_a_batch_fills_every_range(self, engine, tmp_path):
        random = np.random.default_rng(3)
        content = content_of(MEBIBYTE)
        offsets = random.integers(0, 1000, 3000) * 1024
        lengths = random.integers(0, 1025, 3000)
        lengths[::3] = 1024
        positions = np.arange(3000) * 1024
        random.shuffle(positions)
        with self.file_with(tmp_path, content) as file, BufferPool("8MiB") as pool:
            target = pool.take(3000 * 1024)
            target.memory[:] = 0xEE
            ticket = engine.read_many(file, offsets, lengths, target, positions)
            assert ticket.result() == lengths.sum()
            for offset, length, position in zip(offsets, lengths, positions, strict=True):
                row = target.memory[position : position + 1024].tobytes()
                assert row[:length] == content[offset : offset + length]
                assert set(row[length:]) <= {0xEE}

    def test_a_batch_of_writes_puts_every_range_in_its_place(self, engine, scratch):
        random = np.random.default_rng(4)
        lengths = random.integers(0, 4097, 500)
        lengths[::3] = 4096
        places = random.permutation(500)
        positions = random.permutation(500) * 4096
        with BufferPool("8MiB") as pool:
            source = pool.take(500 * 4096)
            source.memory[:] = random.integers(0, 256, 500 * 4096)
            engine.write(scratch, 0, bytes(500 * 4096)).wait(PATIENCE_SECONDS)
            ticket = engine.write_many(scratch, places * 4096, lengths, source, positions)
            assert ticket.result() == lengths.sum()
            back = self.read_back(engine, scratch, 500 * 4096)
        expected = bytearray(500 * 4096)
        for place, length, position in zip(places, lengths, positions, strict=True):
            row = source.memory[position : position + length].tobytes()
            expected[place * 4096 : place * 4096 + length] = row
        assert back == expected

    def test_a_batch_of_writes_needs_a_writable_file(self, engine, tmp_path):
        path = tmp_path / "read only"
        path.write_bytes(bytes(10))
        with open_file(path) as file, pytest.raises(ValueError, match="opened for reading"):
            engine.write_many(file, [0], [10], bytes(10), [0])

    def test_a_batch_copies_its_arrays(self, engine, tmp_path):
        content = content_of(8192)
        with self.file_with(tmp_path, content) as file:
            offsets, target = np.arange(8) * 1024, bytearray(8192)
            positions = offsets.copy()
            with paused(engine):
                ticket = engine.read_many(file, offsets, 1024, target, positions)
                offsets[:] = positions[:] = 0
            ticket.wait(PATIENCE_SECONDS)
            assert target == content

    def test_an_empty_batch_is_done(self, engine, scratch):
        assert engine.read_many(scratch, [], [], bytearray(1), []).result() == 0

    @pytest.mark.parametrize(
        ("offsets", "lengths", "positions"),
        [
            ([0, 10], [10, 10], [0, 91]),
            ([0, -1], [10, 10], [0, 10]),
            ([0, 10], [10, -1], [0, 10]),
            ([0, 10], [10, 10], [0, -1]),
            ([0, 10], [10, 10], [0]),
            ([[0, 10]], 10, [[0, 10]]),
        ],
        ids=["beyond", "offset", "length", "position", "count", "dimensions"],
    )
    def test_refuses_a_batch_that_does_not_fit(self, engine, tmp_path, offsets, lengths, positions):
        with self.file_with(tmp_path, bytes(100)) as file, pytest.raises(ValueError, match=r"\w+"):
            engine.read_many(file, offsets, lengths, bytearray(100), positions)

    # Failing

    @pytest.mark.parametrize(
        ("offset", "got"), [(9000, 1000), (10_000, 0), (50_000, 0), (8192, 1808)]
    )
    def test_a_file_that_ends_early_is_a_short_read(self, engine, tmp_path, offset, got):
        with self.file_with(tmp_path, content_of(10_000)) as file, BufferPool("1MiB") as pool:
            ticket = engine.read(file, offset, pool.take(4096))
            with pytest.raises(ShortReadError) as raised:
                ticket.wait(PATIENCE_SECONDS)
        assert (raised.value.offset_bytes, raised.value.length_bytes) == (offset, 4096)
        assert raised.value.got_bytes == got
        assert raised.value.filename == str(tmp_path / "content")
        assert f"{got:,} of 4,096 bytes were there" in str(raised.value)

    def test_a_long_read_beyond_the_end_says_how_much_was_there(self, engine, tmp_path):
        with (
            self.file_with(tmp_path, content_of(5 * MEBIBYTE + 10)) as file,
            BufferPool("64MiB") as pool,
            pytest.raises(ShortReadError) as raised,
        ):
            engine.read(file, 0, pool.take(30 * MEBIBYTE)).wait(PATIENCE_SECONDS)
        assert raised.value.got_bytes == 5 * MEBIBYTE + 10

    def test_an_error_is_raised_each_time_and_the_engine_goes_on(self, engine, tmp_path):
        content = content_of(10_000)
        with self.file_with(tmp_path, content) as file:
            ticket = engine.read(file, 10_000, bytearray(10))
            for _ in range(2):
                with pytest.raises(ShortReadError):
                    ticket.wait(PATIENCE_SECONDS)
            assert ticket.done
            assert self.read_back(engine, file, 10_000) == content
        assert engine.stats().failed_requests == 1

    def test_one_bad_range_does_not_spoil_the_batch(self, engine, tmp_path):
        content = content_of(8192)
        with self.file_with(tmp_path, content) as file:
            target = bytearray(b"\xee" * 4096)
            ticket = engine.read_many(
                file, [0, 9000, 7168, 8000], 1024, target, [0, 1024, 2048, 3072]
            )
            with pytest.raises(ShortReadError, match=r"2 of 4 requests failed") as raised:
                ticket.wait(PATIENCE_SECONDS)
        assert raised.value.offset_bytes == 9000
        assert {each.range_index: each.moved_bytes for each in ticket.failures} == {1: 0, 3: 192}
        assert target[:1024] == content[:1024]
        assert target[2048:3072] == content[7168:8192]

    # Tickets

    def test_a_ticket_is_done_when_it_is(self, engine, tmp_path):
        with self.file_with(tmp_path, content_of(4096)) as file:
            with paused(engine):
                ticket = engine.read(file, 0, bytearray(4096))
                assert not ticket.done
                with pytest.raises(WaitTimeoutError, match=r"read of .*content \(4,096 bytes\)"):
                    ticket.wait(0.01)
            ticket.wait(PATIENCE_SECONDS)
            assert ticket.done
            assert ticket.result() == 4096

    def test_done_comes_without_anybody_waiting(self, engine, tmp_path):
        with self.file_with(tmp_path, content_of(4096)) as file:
            known = threading.Event()
            engine.read(file, 0, bytearray(4096)).add_done_callback(lambda _: known.set())
            assert known.wait(PATIENCE_SECONDS)

    def test_callbacks_are_called_once_whenever_they_are_added(self, engine, tmp_path):
        with self.file_with(tmp_path, content_of(4096)) as file:
            called: list[Ticket] = []
            known = threading.Event()
            with paused(engine):
                ticket = engine.read(file, 4096, bytearray(1))  # fails
                ticket.add_done_callback(called.append)
                ticket.add_done_callback(lambda _: known.set())
            assert known.wait(PATIENCE_SECONDS)
            ticket.add_done_callback(called.append)
            assert called == [ticket, ticket]

    def test_a_callback_that_raises_is_logged_and_harms_nobody(self, engine, tmp_path, caplog):
        def complain(_: Ticket) -> None:
            raise RuntimeError("no")

        with self.file_with(tmp_path, content_of(4096)) as file:
            ticket = engine.read(file, 0, bytearray(1))
            ticket.wait(PATIENCE_SECONDS)
            ticket.add_done_callback(complain)
            assert self.read_back(engine, file, 10) == content_of(4096)[:10]
        assert "a callback of the read of" in caplog.text

    def test_a_ticket_keeps_its_target_until_it_is_done(self, engine, tmp_path):
        with self.file_with(tmp_path, content_of(4096)) as file:
            known = threading.Event()
            with paused(engine):
                target = np.zeros(4096, np.uint8)
                alive = weakref.ref(target)
                ticket = engine.read(file, 0, target)
                ticket.add_done_callback(lambda _: known.set())
                del target, ticket
                gc.collect()
                assert alive() is not None
            assert known.wait(PATIENCE_SECONDS)
            for _ in range(1000):  # the thread that finished it may still hold it for a moment
                gc.collect()
                if alive() is None:
                    break
                threading.Event().wait(0.01)
            assert alive() is None

    def test_a_pooled_buffer_in_use_is_not_handed_out(self, engine, tmp_path):
        with self.file_with(tmp_path, content_of(4096)) as file, BufferPool(4096) as pool:
            with paused(engine):
                buffer = pool.take(4096)
                ticket = engine.read(file, 0, buffer)
                buffer.release()
                del buffer
                with pytest.raises(WaitTimeoutError):
                    pool.take(4096, block=False)
            ticket.wait(PATIENCE_SECONDS)
            pool.take(4096, timeout_seconds=PATIENCE_SECONDS)

    def test_closing_a_file_lets_its_requests_end(self, engine, tmp_path):
        content = content_of(4096)
        file = self.file_with(tmp_path, content)
        descriptor = file.buffered_descriptor
        target = bytearray(4096)
        with paused(engine):
            ticket = engine.read(file, 0, target)
            file.close()
            assert os.fstat(descriptor).st_size == 4096
        ticket.wait(PATIENCE_SECONDS)
        assert target == content
        assert file.buffered_descriptor == -1

    # Order

    def test_the_urgent_go_first(self, tmp_path):
        order: list[str] = []
        with self.open_engine(depth=1) as engine, open_file(tmp_path, "scratch") as file:
            engine.write(file, 0, bytes(9 * 4096)).wait(PATIENCE_SECONDS)
            with paused(engine):
                tickets = []
                for number in range(3):
                    for priority in (Priority.WRITE, Priority.PREFETCH, Priority.DEMAND):
                        ticket = engine.read(
                            file, 4096 * number, bytearray(4096), priority=priority
                        )
                        name = f"{priority.name} {number}"
                        ticket.add_done_callback(lambda _, name=name: order.append(name))
                        tickets.append(ticket)
            known = threading.Event()
            tickets[-3].add_done_callback(lambda _: known.set())
            assert known.wait(PATIENCE_SECONDS)
        assert order == [
            f"{name} {number}" for name in ("DEMAND", "PREFETCH", "WRITE") for number in range(3)
        ]

    def test_a_queued_request_can_be_cancelled(self, engine, tmp_path):
        with self.file_with(tmp_path, content_of(4096)) as file:
            target = bytearray(100)
            with paused(engine):
                ticket = engine.read(file, 0, target)
                other = engine.read(file, 0, bytearray(100))
                assert engine.cancel(ticket)
                assert ticket.done
                assert not engine.cancel(ticket)
            with pytest.raises(CancelledError, match=r"read of .* was cancelled"):
                ticket.wait(PATIENCE_SECONDS)
            other.wait(PATIENCE_SECONDS)
            assert target == bytes(100)
            assert engine.stats().in_flight_bytes == 0

    def test_what_is_done_cannot_be_cancelled(self, engine, tmp_path):
        with self.file_with(tmp_path, content_of(4096)) as file:
            ticket = engine.read(file, 0, bytearray(100))
            ticket.wait(PATIENCE_SECONDS)
            assert not engine.cancel(ticket)
            assert ticket.result() == 100

    # Bounds

    def test_submitting_waits_for_room(self, tmp_path):
        with (
            self.open_engine(in_flight_bytes=4 * MEBIBYTE) as engine,
            self.file_with(tmp_path, content_of(MEBIBYTE)) as file,
        ):
            submitted: list[Ticket] = []
            third, last = threading.Event(), threading.Event()

            def submit() -> None:
                for number in range(6):
                    submitted.append(
                        engine.read(file, 0, bytearray(MEBIBYTE), priority=Priority.PREFETCH)
                    )
                    if number == 2:
                        third.set()
                last.set()

            engine.pause()
            thread = threading.Thread(target=submit)
            thread.start()
            assert third.wait(PATIENCE_SECONDS)
            assert not last.wait(0.05), "three quarters of the room are for prefetches and writes"
            assert len(submitted) == 3
            demand = engine.read(file, 0, bytearray(MEBIBYTE))  # the last quarter is for demands
            engine.resume()
            assert last.wait(PATIENCE_SECONDS)
            thread.join()
            for ticket in (*submitted, demand):
                ticket.wait(PATIENCE_SECONDS)
            stats = engine.stats()
            assert stats.largest_in_flight_bytes == 4 * MEBIBYTE
            assert stats.in_flight_bytes == 0

    def test_a_demand_is_not_kept_out_by_what_is_longer_than_the_bound(self, tmp_path):
        with (
            self.open_engine(in_flight_bytes=4096) as engine,
            self.file_with(tmp_path, content_of(MEBIBYTE)) as file,
        ):
            with paused(engine):
                long = engine.read(file, 0, bytearray(MEBIBYTE), priority=Priority.PREFETCH)
                demand = engine.read(file, 0, bytearray(MEBIBYTE))  # would wait forever
            long.wait(PATIENCE_SECONDS)
            demand.wait(PATIENCE_SECONDS)

    def test_a_request_beyond_the_bound_goes_alone(self, tmp_path):
        with (
            self.open_engine(in_flight_bytes=4096) as engine,
            self.file_with(tmp_path, content_of(MEBIBYTE)) as file,
        ):
            tickets = [engine.read(file, 0, bytearray(MEBIBYTE)) for _ in range(3)]
            for ticket in tickets:
                assert ticket.result() == MEBIBYTE
            assert engine.stats().largest_in_flight_bytes == MEBIBYTE

    # Closing

    def test_closing_ends_what_is_queued_and_refuses_what_comes(self, tmp_path):
        engine = self.open_engine()
        with self.file_with(tmp_path, content_of(4096)) as file:
            before = engine.read(file, 0, bytearray(4096))
            before.wait(PATIENCE_SECONDS)
            engine.pause()
            queued = [engine.read(file, 0, bytearray(4096)) for _ in range(5)]
            engine.close()
            for ticket in queued:
                assert ticket.done
                with pytest.raises(EngineClosedError, match="closed before this request was done"):
                    ticket.wait(PATIENCE_SECONDS)
            assert before.result() == 4096
            with pytest.raises(EngineClosedError, match="closed; open another"):
                engine.read(file, 0, bytearray(4096))
            engine.close()
            assert engine.stats().in_flight_bytes == 0

    def test_closing_with_requests_under_way_is_clean(self, tmp_path):
        content = content_of(8 * MEBIBYTE)
        with self.file_with(tmp_path, content) as file, BufferPool("64MiB") as pool:
            engine = self.open_engine()
            buffers = [pool.take(8 * MEBIBYTE) for _ in range(4)]
            tickets = [engine.read(file, 0, buffer) for buffer in buffers]
            engine.close()
            for ticket, buffer in zip(tickets, buffers, strict=True):
                try:
                    ticket.wait(PATIENCE_SECONDS)
                except EngineClosedError:
                    continue
                assert buffer.memory.tobytes() == content

    def test_closing_wakes_those_who_wait_for_room(self, tmp_path):
        engine = self.open_engine(in_flight_bytes=4096)
        raised: list[Exception] = []
        with self.file_with(tmp_path, content_of(4096)) as file:

            def submit() -> None:
                try:
                    for _ in range(100):
                        engine.read(file, 0, bytearray(4096))
                except EngineClosedError as error:
                    raised.append(error)

            engine.pause()
            thread = threading.Thread(target=submit)
            thread.start()
            while engine.stats().requests < 1:
                threading.Event().wait(0.001)
            engine.close()
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
        assert len(raised) == 1

    # Counting

    def test_what_was_done_is_counted(self, engine, scratch):
        with meter() as counted:
            engine.write(scratch, 0, bytes(10_000), why="spool").wait(PATIENCE_SECONDS)
            engine.read(scratch, 0, bytearray(3000), why="rows").wait(PATIENCE_SECONDS)
            ticket = engine.read_many(
                scratch, [0, 5000], 1000, bytearray(2000), [0, 1000], why="rows"
            )
            ticket.wait(PATIENCE_SECONDS)
        stats = engine.stats()
        assert (stats.requests, stats.failed_requests) == (4, 0)
        assert (stats.read_bytes, stats.written_bytes) == (5000, 10_000)
        assert stats.direct_transfers + stats.buffered_transfers >= 4
        assert counted.moved["memory", "disk", "spool"].bytes == 10_000
        assert counted.moved["disk", "memory", "rows"].bytes == 5000
        assert counted.moved["disk", "memory", "rows"].times == 3

    def test_waiting_is_counted_as_a_stall(self, engine, tmp_path):
        with self.file_with(tmp_path, content_of(4096)) as file, meter() as counted:
            with paused(engine):
                ticket = engine.read(file, 0, bytearray(4096), why="rows")
                with pytest.raises(WaitTimeoutError):
                    ticket.wait(0.05)
            ticket.wait(PATIENCE_SECONDS)
            ticket.wait()
        assert counted.stall_seconds["rows"] >= 0.05

    # Many threads, many processes, large files

    def test_many_threads_share_an_engine(self, tmp_path):
        content = content_of(2 * MEBIBYTE)
        wrong: list[str] = []
        with (
            self.open_engine(in_flight_bytes=MEBIBYTE) as engine,
            self.file_with(tmp_path, content) as file,
            open_file(tmp_path, "scratch") as scratch,
        ):

            def work(seed: int) -> None:
                random = np.random.default_rng(seed)
                for turn in range(30):
                    offset = int(random.integers(0, len(content) - 40_000))
                    length = int(random.integers(1, 40_000))
                    priority = Priority(int(random.integers(0, 3)))
                    target = bytearray(length)
                    ticket = engine.read(file, offset, target, priority=priority)
                    mine = content_of(4096, seed=seed * 100 + turn)
                    written = engine.write(scratch, seed * 4096, mine)
                    ticket.wait(PATIENCE_SECONDS)
                    written.wait(PATIENCE_SECONDS)
                    back = bytearray(4096)
                    engine.read(scratch, seed * 4096, back).wait(PATIENCE_SECONDS)
                    if target != content[offset : offset + length] or back != mine:
                        wrong.append(f"thread {seed}, turn {turn}")

            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert wrong == []
            assert engine.stats().requests == 8 * 30 * 3
            assert engine.stats().largest_in_flight_bytes <= MEBIBYTE

    def test_two_threads_may_wait_for_one_ticket(self, engine, tmp_path):
        with self.file_with(tmp_path, content_of(4096)) as file:
            results: list[int] = []
            with paused(engine):
                ticket = engine.read(file, 0, bytearray(4096))
                threads = [
                    threading.Thread(target=lambda: results.append(ticket.result()))
                    for _ in range(4)
                ]
                for thread in threads:
                    thread.start()
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
            assert results == [4096] * 4

    def test_a_forked_child_has_an_engine_of_its_own(self, engine, tmp_path):
        content = content_of(MEBIBYTE)
        with self.file_with(tmp_path, content) as file:
            done = engine.read(file, 0, bytearray(4096))
            done.wait(PATIENCE_SECONDS)
            with paused(engine):
                pending = engine.read(file, 0, bytearray(4096))

                def work() -> None:
                    assert self.read_back(engine, file, MEBIBYTE) == content
                    assert done.result() == 4096
                    with pytest.raises(ForkedTicketError, match="before this process was forked"):
                        pending.wait(1)
                    with pytest.raises(ForkedTicketError):
                        _ = pending.done
                    engine.close()

                in_child(work)
            pending.wait(PATIENCE_SECONDS)
            assert self.read_back(engine, file, MEBIBYTE) == content

    def test_forking_in_the_middle_of_traffic_harms_neither_side(self, engine, tmp_path):
        content = content_of(4 * MEBIBYTE)
        with self.file_with(tmp_path, content) as file, BufferPool("64MiB") as pool:
            for _ in range(5):
                buffers = [pool.take(4 * MEBIBYTE) for _ in range(3)]
                tickets = [engine.read(file, 0, buffer) for buffer in buffers]
                in_child(lambda: self.read_back(engine, file, 10_000) == content[:10_000] or 1 / 0)
                for ticket, buffer in zip(tickets, buffers, strict=True):
                    ticket.wait(PATIENCE_SECONDS)
                    assert buffer.memory.tobytes() == content

    def test_a_closed_engine_stays_closed_in_a_child(self, tmp_path):
        engine = self.open_engine()
        engine.close()
        with self.file_with(tmp_path, bytes(10)) as file:

            def work() -> None:
                with pytest.raises(EngineClosedError):
                    engine.read(file, 0, bytearray(10))

            in_child(work)

    def test_offsets_beyond_four_gibibytes(self, engine, scratch):
        if not self.is_on_disk:
            pytest.skip("would need as much memory")
        place = 5 * 2**30 + 8192
        content = content_of(MEBIBYTE)
        with BufferPool("8MiB") as pool:
            source, target = pool.take(MEBIBYTE), pool.take(MEBIBYTE)
            source.memory[:] = np.frombuffer(content, np.uint8)
            engine.write(scratch, place, source).wait(PATIENCE_SECONDS)
            engine.write(scratch, place + MEBIBYTE, b"tail").wait(PATIENCE_SECONDS)
            engine.read(scratch, place, target).wait(PATIENCE_SECONDS)
            assert target.memory.tobytes() == content
            tail = bytearray(5)
            engine.read_many(scratch, [place + MEBIBYTE], 4, tail, [1]).wait(PATIENCE_SECONDS)
            assert tail == b"\0tail"

    def test_a_file_truncated_underneath_is_a_short_read(self, engine, tmp_path):
        if not self.is_on_disk:
            pytest.skip("the content is in memory")
        with self.file_with(tmp_path, content_of(MEBIBYTE)) as file, BufferPool("4MiB") as pool:
            engine.read(file, 0, pool.take(MEBIBYTE)).wait(PATIENCE_SECONDS)
            os.truncate(file.path, 700_001)
            with pytest.raises(ShortReadError) as raised:
                engine.read(file, 0, pool.take(MEBIBYTE)).wait(PATIENCE_SECONDS)
            assert raised.value.got_bytes == 700_001

    def test_a_limit_on_file_size_is_an_error_and_not_a_signal(self, engine, scratch):
        if not self.is_on_disk:
            pytest.skip("nothing is written to a file")

        def work() -> None:
            import resource

            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
            ticket = engine.write(scratch, 90_000, bytes(20_000))
            with pytest.raises(StorageError) as raised:
                ticket.wait(PATIENCE_SECONDS)
            assert raised.value.errno == errno.EFBIG
            assert ticket.failures[0].moved_bytes == 10_000
            assert "10,000 of 20,000 bytes were written" in str(raised.value)

        in_child(work)

    def test_says_what_it_is(self, engine):
        assert engine.name in repr(engine)
