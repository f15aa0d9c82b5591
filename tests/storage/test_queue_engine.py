"""Queues, pieces and threads, seen through an engine that only records what it is told to do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shorthaul.storage import MemoryEngine, Priority, StorageFile, open_file
from shorthaul.storage.queue_engine import (
    Job,
    Outcome,
    OuterEngine,
    QueueEngine,
    Transfer,
    has_room,
)
from shorthaul.storage.testing.contract import PATIENCE_SECONDS, paused

PIECE = 1000


class RecordingEngine(QueueEngine):
    """Moves nothing, notes every transfer, and can be held inside one."""

    name = "recording"

    def __init__(self, **options: int) -> None:
        self.transfers: list[tuple[str, int, int]] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.inside = threading.Semaphore(0)
        chosen = {"depth": 1, "in_flight_bytes": 10**6, "piece_bytes": PIECE, "piece_ranges": 4}
        super().__init__(**(chosen | options))

    def _transfer(self, job: Job, transfer: Transfer) -> Outcome:
        self.transfers.append((job.request.why, transfer.offset_bytes, transfer.length_bytes))
        self.inside.release()
        assert self.go_on.wait(PATIENCE_SECONDS)
        if job.request.why == "broken":
            raise RuntimeError("a defect in an engine")
        return Outcome(transfer.length_bytes)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[StorageFile]:
    with open_file(tmp_path, "scratch") as file:
        yield file


def test_a_long_request_is_cut_into_pieces(file: StorageFile) -> None:
    with RecordingEngine() as engine:
        engine.write(file, 70, bytes(2 * PIECE + 1), why="long").wait(PATIENCE_SECONDS)
        assert engine.transfers == [("long", 70, PIECE), ("long", 1070, PIECE), ("long", 2070, 1)]


def test_an_urgent_request_goes_between_the_pieces(file: StorageFile) -> None:
    with RecordingEngine() as engine:
        engine.go_on.clear()
        long = engine.write(file, 0, bytes(3 * PIECE), why="long")
        assert engine.inside.acquire(timeout=PATIENCE_SECONDS)
        urgent = engine.read(file, 0, bytearray(10), why="urgent")
        assert not engine.cancel(long), "it has started"
        engine.go_on.set()
        long.wait(PATIENCE_SECONDS)
        urgent.wait(PATIENCE_SECONDS)
        assert [why for why, _, _ in engine.transfers] == ["long", "urgent", "long", "long"]


def test_some_threads_stay_free_for_the_urgent(file: StorageFile) -> None:
    with RecordingEngine(depth=4) as engine:
        engine.go_on.clear()
        writes = [engine.write(file, 0, bytes(10), why="write") for _ in range(10)]
        for _ in range(3):
            assert engine.inside.acquire(timeout=PATIENCE_SECONDS)
        urgent = engine.read(file, 0, bytearray(10), why="urgent")
        assert engine.inside.acquire(timeout=PATIENCE_SECONDS)
        assert [why for why, _, _ in engine.transfers] == ["write"] * 3 + ["urgent"]
        engine.go_on.set()
        for ticket in (urgent, *writes):
            ticket.wait(PATIENCE_SECONDS)


def test_the_window_bounds_the_less_urgent(file: StorageFile) -> None:
    with RecordingEngine(depth=8, window_bytes=2 * PIECE) as engine:
        engine.go_on.clear()
        writes = [engine.write(file, 0, bytes(PIECE)) for _ in range(5)]
        for _ in range(2):
            assert engine.inside.acquire(timeout=PATIENCE_SECONDS)
        assert not engine.inside.acquire(timeout=0.05)
        engine.go_on.set()
        for ticket in writes:
            ticket.wait(PATIENCE_SECONDS)


def test_a_batch_gives_every_thread_something(file: StorageFile) -> None:
    with RecordingEngine(depth=4, piece_ranges=100) as engine:
        engine.go_on.clear()
        ticket = engine.read_many(file, range(8), 1, bytearray(8), range(8))
        for _ in range(4):
            assert engine.inside.acquire(timeout=PATIENCE_SECONDS)
        engine.go_on.set()
        ticket.wait(PATIENCE_SECONDS)
        assert sorted(offset for _, offset, _ in engine.transfers) == list(range(8))


def test_a_defect_reaches_whoever_waits(file: StorageFile) -> None:
    with RecordingEngine() as engine:
        ticket = engine.write(file, 0, bytes(3 * PIECE), why="broken")
        with pytest.raises(RuntimeError, match="a defect in an engine"):
            ticket.wait(PATIENCE_SECONDS)
        engine.write(file, 0, bytes(10)).wait(PATIENCE_SECONDS)
        assert engine.stats().in_flight_bytes == 0


def test_closing_cuts_a_long_request_short(file: StorageFile) -> None:
    engine = RecordingEngine()
    engine.go_on.clear()
    ticket = engine.write(file, 0, bytes(5 * PIECE))
    assert engine.inside.acquire(timeout=PATIENCE_SECONDS)
    closing = threading.Thread(target=engine.close)
    closing.start()
    while not engine._is_closing:
        threading.Event().wait(0.001)
    assert not ticket.done, "what runs is waited for"
    engine.go_on.set()
    closing.join(PATIENCE_SECONDS)
    with pytest.raises(RuntimeError, match="closed before this request was done"):
        ticket.wait(PATIENCE_SECONDS)
    assert len(engine.transfers) == 1


def test_pausing_waits_for_what_runs(file: StorageFile) -> None:
    with RecordingEngine() as engine:
        engine.go_on.clear()
        ticket = engine.write(file, 0, bytes(2 * PIECE))
        assert engine.inside.acquire(timeout=PATIENCE_SECONDS)
        threading.Timer(0.05, engine.go_on.set).start()
        with paused(engine):
            assert engine._running == 0
            assert len(engine.transfers) == 1
        ticket.wait(PATIENCE_SECONDS)


def test_closing_an_outer_engine_closes_the_inner(file: StorageFile) -> None:
    inner = MemoryEngine()
    options = {"depth": 1, "in_flight_bytes": 100, "piece_bytes": PIECE, "piece_ranges": 1}
    with OuterEngine(inner, **options) as outer:
        outer.write(file, 0, b"through").wait(PATIENCE_SECONDS)
        assert inner.content_of(file) == b"through"
    assert inner._is_closing


def test_an_inner_engine_that_is_closed_is_an_error_outside(file: StorageFile) -> None:
    inner = MemoryEngine()
    options = {"depth": 1, "in_flight_bytes": 100, "piece_bytes": PIECE, "piece_ranges": 1}
    with OuterEngine(inner, **options) as outer:
        inner.close()
        with pytest.raises(RuntimeError, match="the memory engine is closed"):
            outer.write(file, 0, b"through").wait(PATIENCE_SECONDS)


sizes = st.integers(0, 400)


@given(st.lists(st.tuples(sizes, st.booleans(), st.booleans()), max_size=60))
def test_what_enters_is_bounded_and_everything_enters_in_the_end(steps) -> None:
    """(length, is a demand, one leaves first): a plain model of the door."""
    limit = 100
    inside: list[tuple[int, bool]] = []
    for length, is_demand, one_leaves in steps:
        if one_leaves and inside:
            inside.pop(0)
        demand = sum(size for size, urgent in inside if urgent)
        total = sum(size for size, _ in inside)
        if has_room(
            length,
            is_demand=is_demand,
            limit_bytes=limit,
            in_flight_bytes=total,
            demand_bytes=demand,
        ):
            inside.append((length, is_demand))
        low = [size for size, urgent in inside if not urgent and size]
        urgent = [size for size, urgent in inside if urgent and size]
        assert sum(low) <= 75 or len(low) == 1
        assert sum(urgent) <= limit or len(urgent) == 1
        if all(size <= 25 for size, _ in inside):
            assert sum(low) + sum(urgent) <= limit
    for is_demand in (True, False):
        assert has_room(
            10**9, is_demand=is_demand, limit_bytes=limit, in_flight_bytes=0, demand_bytes=0
        )


def test_priorities_are_those_of_the_queues() -> None:
    with RecordingEngine() as engine:
        assert len(engine._queues) == len(Priority)
