"""The ruler counts what happens while it is open, everywhere, exactly once."""

import gc
import json
import mmap
import os
import signal
import sys
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import shorthaul as sh
from shorthaul.meter import (
    KeptBytes,
    Meter,
    read_peak_resident_bytes,
    record_compile,
    record_kept,
    record_launch,
    record_move,
    record_stall,
    reset_peak_resident,
)


@pytest.fixture(autouse=True)
def _nothing_left_kept(monkeypatch):
    """A test that keeps bytes gives them back: what is kept is known to all later meters.

    Pools that other tests filled keep their memory for the next who asks; here they do not count.
    """
    gc.collect()  # what other tests left to the collector is counted until it comes
    monkeypatch.setattr(sys.modules["shorthaul.meter"], "_kept_now", {})
    with sh.meter() as before:
        pass
    yield
    with sh.meter() as after:
        pass
    assert after.kept_bytes == before.kept_bytes


def test_moves_are_counted_by_source_target_and_why() -> None:
    with sh.meter() as m:
        record_move("disk", "memory", 4096, "feature rows")
        record_move("disk", "memory", 4096, "feature rows", times=3)
        record_move("disk", "memory", 100, "activations")
        record_move("memory", "disk", 50, "activations")
        record_move("memory", "cuda", 7, "feature rows")
    assert m.moved_bytes == 8349
    assert m.read_bytes == 8292
    assert m.written_bytes == 50
    assert m.bytes_between() == m.moved_bytes
    assert m.bytes_between(why="activations") == 150
    assert m.bytes_between("disk", "memory", "feature rows") == 8192
    assert m.bytes_between("cuda") == 0
    assert m.moved["disk", "memory", "feature rows"].times == 4


def test_nothing_is_counted_outside_the_block() -> None:
    record_move("disk", "memory", 1, "before")
    with sh.meter() as m:
        pass
    record_move("disk", "memory", 1, "after")
    record_launch("after")
    record_compile("after")
    record_stall(1.0, "after")
    assert m.to_dict()["moved"] == []
    assert (dict(m.launches), dict(m.compiles), m.stall_seconds) == ({}, {}, {})


def test_meters_nest() -> None:
    with sh.meter() as outer:
        record_move("disk", "memory", 1, "x")
        with sh.meter() as inner:
            record_move("disk", "memory", 10, "x")
        record_move("disk", "memory", 100, "x")
    assert inner.moved_bytes == 10
    assert outer.moved_bytes == 111


def test_a_meter_may_end_before_one_that_began_later() -> None:
    first, second = sh.meter(), sh.meter()
    one = first.__enter__()
    two = second.__enter__()
    record_move("disk", "memory", 1, "x")
    first.__exit__(None, None, None)
    record_move("disk", "memory", 10, "x")
    second.__exit__(None, None, None)
    assert (one.moved_bytes, two.moved_bytes) == (1, 11)


def test_a_meter_ends_with_a_block_that_fails() -> None:
    def fail() -> None:
        record_move("disk", "memory", 1, "x")
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"), sh.meter() as m:
        fail()
    record_move("disk", "memory", 10, "x")
    assert m.moved_bytes == 1
    assert m.seconds > 0


def test_stalls_launches_and_compiles_are_counted_by_name() -> None:
    with sh.meter() as m:
        record_stall(0.25, "prefetch")
        record_stall(0.5, "prefetch")
        record_stall(1.0, "spool")
        for _ in range(3):
            record_launch("gather_3f2a91bc")
        record_compile("gather_3f2a91bc")
    assert m.stall_seconds == {"prefetch": 0.75, "spool": 1.0}
    assert m.launches == {"gather_3f2a91bc": 3}
    assert m.compiles == {"gather_3f2a91bc": 1}


def test_kept_bytes_and_their_peak() -> None:
    with sh.meter() as m:
        record_kept(100, "activations")
        record_kept(50, "row cache")
        assert m.kept_bytes == {"activations": 100, "row cache": 50}
        record_kept(-100, "activations")
        record_kept(20, "row cache")
        assert m.kept_bytes == {"row cache": 70}
        record_kept(-30, "row cache")
    assert m.peak_kept_bytes == 150
    assert m.kept_bytes == {"row cache": 40}, "what was held when the block ended"
    record_kept(-40, "row cache")
    assert m.kept_bytes == {"row cache": 40}, "a closed meter stays as it was"


def test_a_meter_knows_what_was_kept_before_it_began() -> None:
    record_kept(100, "row cache")
    with sh.meter() as m:
        assert (m.kept_bytes, m.peak_kept_bytes) == ({"row cache": 100}, 100)
        record_kept(-100, "row cache")
        record_kept(60, "activations")
    assert (m.kept_bytes, m.peak_kept_bytes) == ({"activations": 60}, 100)
    record_kept(-60, "activations")


def test_an_inner_meter_has_a_peak_of_its_own() -> None:
    with sh.meter() as outer:
        record_kept(100, "x")
        record_kept(-100, "x")
        with sh.meter() as inner:
            record_kept(30, "x")
        record_kept(-30, "x")
    assert (outer.peak_kept_bytes, inner.peak_kept_bytes) == (100, 30)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 1000), st.booleans())))
def test_kept_bytes_follow_any_history(history: list[tuple[str, int, bool]]) -> None:
    held: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    peak_bytes = 0
    with sh.meter() as m:
        for why, count_bytes, is_release in history:
            if is_release and held[why]:
                record_kept(-held[why].pop(), why)
            else:
                held[why].append(count_bytes)
                record_kept(count_bytes, why)
            peak_bytes = max(peak_bytes, sum(map(sum, held.values())))
    for why, pieces in held.items():
        record_kept(-sum(pieces), why)
    assert m.kept_bytes == {why: sum(pieces) for why, pieces in held.items() if pieces}
    assert m.peak_kept_bytes == peak_bytes


def test_threads_are_counted_together_and_nothing_is_lost() -> None:
    threads, events = 8, 500
    barrier = threading.Barrier(threads)

    def work() -> None:
        barrier.wait()
        for _ in range(events):
            record_move("disk", "memory", 3, "x")
            record_kept(5, "x")
            record_launch("kernel")
            record_stall(1.0, "x")
            record_kept(-5, "x")

    with sh.meter() as m:
        workers = [threading.Thread(target=work) for _ in range(threads)]
        for each in workers:
            each.start()
        for each in workers:
            each.join()
    assert m.moved["disk", "memory", "x"].bytes == 3 * threads * events
    assert m.moved["disk", "memory", "x"].times == threads * events
    assert m.launches["kernel"] == threads * events
    assert m.stall_seconds["x"] == threads * events
    assert m.kept_bytes == {}
    assert 5 <= m.peak_kept_bytes <= 5 * threads


def test_meters_in_several_threads_each_count_everything() -> None:
    inside, done = threading.Barrier(3), threading.Barrier(3)
    found: list[Meter] = []

    def listen() -> None:
        with sh.meter() as m:
            inside.wait()
            done.wait()
        found.append(m)

    listeners = [threading.Thread(target=listen) for _ in range(2)]
    for each in listeners:
        each.start()
    inside.wait()
    record_move("disk", "memory", 42, "x")
    done.wait()
    for each in listeners:
        each.join()
    assert [each.moved_bytes for each in found] == [42, 42]


class _HoldsBytes:
    """Gives its kept bytes back when the garbage collector finds it, as offloaded records do."""

    def __init__(self) -> None:
        self.itself = self  # a cycle: only the collector frees it
        record_kept(1, "cycle")
        weakref.finalize(self, record_kept, -1, "cycle")


def test_a_finalizer_in_the_middle_of_an_event_neither_hangs_nor_is_lost() -> None:
    threshold = gc.get_threshold()
    try:
        gc.set_threshold(1)  # collect at nearly every allocation, so also inside events
        with sh.meter() as m:
            for number in range(300):
                _HoldsBytes()
                record_move("disk", "memory", 1, f"reason {number}")
            gc.collect()
            record_launch("last")
    finally:
        gc.set_threshold(*threshold)
    assert m.kept_bytes == {}
    assert m.moved_bytes == 300


def test_an_event_told_from_within_an_event_waits_for_its_turn() -> None:
    class Nosy(str):
        """A reason that tells of another event whenever it is hashed, so in the middle of one."""

        count = 0

        def __hash__(self) -> int:
            if self.count < 5:
                type(self).count += 1
                record_kept(11, "kept")
            return super().__hash__()

    record_kept(1, "kept")
    with sh.meter() as m:
        record_kept(5, Nosy("kept"))
        assert m.kept_bytes == {"kept": 6 + 11 * Nosy.count}
        record_kept(-m.kept_bytes["kept"], "kept")
    assert Nosy.count >= 2, "the middle of the event was met"


def test_an_event_that_cannot_be_counted_does_not_stop_the_ruler() -> None:
    with sh.meter() as m:
        with pytest.raises(TypeError):
            record_move("disk", "memory", "many", "x")  # type: ignore[arg-type]
        record_move("disk", "memory", 5, "y")
    assert m.bytes_between(why="y") == 5


def test_a_child_made_while_another_thread_counts_can_count() -> None:
    stop = threading.Event()

    def keep_the_lock_busy() -> None:
        while not stop.is_set():
            record_kept(1, "x")
            record_kept(-1, "x")

    worker = threading.Thread(target=keep_the_lock_busy)
    worker.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                with sh.meter() as m:  # would hang here if the lock came over locked
                    record_move("disk", "memory", 7, "x")
                os._exit(0 if m.moved_bytes == 7 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        worker.join()


needs_high_water_mark = pytest.mark.skipif(
    read_peak_resident_bytes() is None or not reset_peak_resident(),
    reason="this kernel does not let the high-water mark be set back",
)
MEBIBYTE = 2**20


def _touch(mebibytes: int) -> None:
    with mmap.mmap(-1, mebibytes * MEBIBYTE) as region:
        for page in range(0, len(region), mmap.PAGESIZE):
            region[page] = 1


@needs_high_water_mark
def test_peak_resident_memory_sees_what_was_touched_and_freed() -> None:
    with sh.meter() as before:
        pass
    with sh.meter() as m:
        _touch(65)  # the kernel's counters lag by some pages per core, well below one MiB
    with sh.meter() as after:
        pass
    assert before.peak_resident_bytes is not None
    assert m.peak_resident_bytes is not None
    assert after.peak_resident_bytes is not None
    assert m.peak_resident_bytes - before.peak_resident_bytes >= 64 * MEBIBYTE
    assert m.peak_resident_bytes - after.peak_resident_bytes >= 32 * MEBIBYTE


@needs_high_water_mark
def test_peak_resident_memory_of_nested_meters() -> None:
    with sh.meter() as outer:
        _touch(96)
        with sh.meter() as small:
            pass
        with sh.meter() as middle:
            _touch(32)
    assert outer.peak_resident_bytes is not None
    assert middle.peak_resident_bytes is not None
    assert small.peak_resident_bytes is not None
    assert outer.peak_resident_bytes - small.peak_resident_bytes >= 80 * MEBIBYTE
    assert outer.peak_resident_bytes - middle.peak_resident_bytes >= 48 * MEBIBYTE
    assert middle.peak_resident_bytes - small.peak_resident_bytes >= 24 * MEBIBYTE


def _full_meter() -> Meter:
    with sh.meter() as m:
        record_move("memory", "disk", 8 * MEBIBYTE, "activations", times=1234)
        record_move("disk", "memory", 4096, "feature rows")
        record_kept(2 * MEBIBYTE, "row cache")
        record_kept(-MEBIBYTE, "row cache")
        record_stall(0.0015, "prefetch")
        record_launch("gather_3f2a91bc")
        record_compile("gather_3f2a91bc")
    record_kept(-MEBIBYTE, "row cache")
    m._seconds, m._peak_bytes = 2.0, 64 * MEBIBYTE
    return m


def test_plain_values_survive_json() -> None:
    values = _full_meter().to_dict()
    assert json.loads(json.dumps(values)) == values
    assert values == {
        "seconds": 2.0,
        "moved": [
            {
                "source": "disk",
                "target": "memory",
                "why": "feature rows",
                "bytes": 4096,
                "times": 1,
            },
            {
                "source": "memory",
                "target": "disk",
                "why": "activations",
                "bytes": 8388608,
                "times": 1234,
            },
        ],
        "kept_bytes": {"row cache": 1048576},
        "peak_kept_bytes": 2097152,
        "stall_seconds": {"prefetch": 0.0015},
        "launches": {"gather_3f2a91bc": 1},
        "compiles": {"gather_3f2a91bc": 1},
        "peak_resident_bytes": 67108864,
    }


def test_the_table_shows_everything() -> None:
    console = Console(width=80, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(_full_meter().table())
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert lines == [
        "                    bytes moved and kept",
        "┏━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━┳━━━━━━━━━━┳━━━━━━━┓",
        "┃ what                 ┃ why             ┃   amount ┃ times ┃",
        "┡━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━╇━━━━━━━━━━╇━━━━━━━┩",
        "│ disk -> memory       │ feature rows    │  4.0 KiB │     1 │",
        "│ memory -> disk       │ activations     │  8.0 MiB │ 1,234 │",
        "│ kept at the end      │ row cache       │  1.0 MiB │       │",
        "│ kept at the peak     │                 │  2.0 MiB │       │",
        "│ waited               │ prefetch        │   1.5 ms │       │",
        "│ launched             │ gather_3f2a91bc │          │     1 │",
        "│ compiled             │ gather_3f2a91bc │          │     1 │",
        "│ peak resident memory │                 │ 64.0 MiB │       │",
        "└──────────────────────┴─────────────────┴──────────┴───────┘",
    ]


def test_the_table_of_an_empty_meter_says_that_nothing_was_kept() -> None:
    table = Meter().table()
    assert table.row_count == 1


def test_inside_its_block_a_meter_tells_of_the_time_so_far() -> None:
    with sh.meter() as m:
        first, second = m.seconds, m.seconds
        assert 0 < first < second
        assert m.to_dict()["seconds"] > second
        peak_bytes = m.peak_resident_bytes
    assert m.seconds == m.seconds > second
    assert (peak_bytes is None) == (m.peak_resident_bytes is None)
    if peak_bytes is not None and m.peak_resident_bytes is not None:
        assert 0 < peak_bytes <= m.peak_resident_bytes


def test_bytes_of_an_object_that_is_gone_are_kept_no_more() -> None:
    class Owner:
        def __init__(self) -> None:
            self.kept = KeptBytes("tests")

    owner, other = Owner(), Owner()
    with sh.meter() as counted:
        owner.kept.change(100)
        other.kept.change(10)
        owner.kept.change(-30)
        assert (owner.kept.bytes, counted.kept_bytes) == (70, {"tests": 80})
        del owner
        other.kept.change(5)
        assert counted.kept_bytes == {"tests": 15}
        del other
    assert counted.kept_bytes == {}
    assert counted.peak_kept_bytes == 110
