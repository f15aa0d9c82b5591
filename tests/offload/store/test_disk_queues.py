from __future__ import annotations

import errno
import threading

import pytest
import torch

from shorthaul.errors import ActivationLostError, StorageError
from shorthaul.offload.drive.spool import SpoolSet
from shorthaul.offload.saved.counts import Counts
from shorthaul.offload.saved.record import Record, State
from shorthaul.offload.store.disk_queues import TOLERATED_FAILURES, ReadLane, WriteLane, wait_for
from shorthaul.storage import Fault, Priority, ThreadEngine, faulty_engine, throttled_engine
from shorthaul.storage.buffer_pool import BufferPool
from tests.offload.records import make_record

SIZE = 8192


class Lanes:
    """Both lanes over one engine, with records of 8 KiB."""

    def __init__(self, directory, *faults: Fault, raises_when_full: bool = False) -> None:
        self.counts = Counts()
        self.engine = faulty_engine(ThreadEngine(depth=1), faults)
        self.spools = SpoolSet([directory])
        self.pool = BufferPool("1MiB")
        self.writes = WriteLane(
            self.engine, self.spools, self.counts, raises_when_full=raises_when_full, wear=None
        )
        self.reads = ReadLane(self.engine, self.spools, self.counts)

    def write(self, value: int) -> Record:
        tensor = torch.full((SIZE,), value, dtype=torch.uint8)
        record = make_record(tensor, State.STORING, position=value)
        record.buffer, record.payload_bytes = self.pool.take(SIZE), SIZE
        record.buffer.memory[:] = value
        slots = self.writes.take_slots(SIZE)
        assert slots is not None
        self.writes.start(record, record.buffer, slots)
        return record


@pytest.fixture
def lanes(tmp_path):
    made = Lanes(tmp_path)
    yield made
    made.engine.close()


def test_memory_is_given_up_when_it_is_written_and_comes_back(lanes):
    record = lanes.write(7)
    assert lanes.writes.in_flight_bytes == SIZE
    lanes.writes.finish_oldest()
    assert record.state is State.STORED
    assert record.buffer is None
    assert (len(lanes.writes), lanes.writes.in_flight_bytes) == (0, 0)
    assert lanes.counts.written_bytes == SIZE
    lanes.reads.start(record, lanes.pool.take(SIZE), Priority.DEMAND)
    assert record in lanes.reads.loading
    assert (lanes.reads.finish(record).memory == 7).all()
    assert lanes.counts.read_bytes == SIZE
    assert not lanes.reads.loading


def test_the_read_of_what_was_packed_first_is_given_up_first(lanes):
    records = [lanes.write(value) for value in (3, 1, 2)]
    while lanes.writes:
        lanes.writes.finish_oldest()
    for record in records:
        lanes.reads.start(record, lanes.pool.take(SIZE), Priority.PREFETCH)
    assert lanes.reads.give_up(wanted=records[1])
    assert sorted(each.position for each in lanes.reads.loading) == [1, 3]
    assert lanes.reads.give_up(None)
    assert [each.position for each in lanes.reads.loading] == [3]
    assert not lanes.reads.give_up(wanted=records[0])


def test_slots_that_nothing_reads_any_more_are_given_back(lanes):
    record = lanes.write(5)
    lanes.writes.finish_oldest()
    lanes.reads.start(record, lanes.pool.take(SIZE), Priority.PREFETCH)
    tickets = record.load.tickets
    assert lanes.reads.loading_bytes == SIZE
    lanes.reads.drain(tickets, record.holdings.slots, record.size_bytes)
    assert lanes.reads.loading_bytes == 0
    for ticket in tickets:
        ticket._await_finish(10)
    lanes.reads.finish_drained()
    assert lanes.spools.used_bytes == 0


def test_a_store_that_has_not_begun_is_called_off(tmp_path):
    lanes = Lanes(tmp_path)
    slow = throttled_engine(lanes.engine, 1e5)  # 80 ms for each record
    lanes.writes.engine = slow
    first, second = lanes.write(1), lanes.write(2)
    assert lanes.writes.withdraw(second)
    assert second.state is State.KEPT
    assert second.buffer is not None
    assert lanes.counts.cancelled_stores == 1
    assert lanes.writes.in_flight_bytes == SIZE
    lanes.writes.finish_oldest()
    assert first.state is State.STORED
    assert lanes.spools.used_bytes == SIZE
    assert lanes.counts.stall_seconds > 0
    slow.close()


def test_failures_keep_their_records_and_in_the_end_refuse_the_disk(tmp_path):
    lanes = Lanes(tmp_path, Fault("errno", 1, "write", onwards=True, code=errno.EIO))
    for count in range(1, TOLERATED_FAILURES + 1):
        record = lanes.write(count)
        lanes.writes.finish_oldest()
        assert record.state is State.KEPT
        assert record.buffer is not None
        assert lanes.writes.quarantined_bytes == count * SIZE
    assert lanes.writes.refusal is not None
    assert lanes.writes.take_slots(SIZE) is None
    lanes.engine.close()


def test_errors_name_what_was_lost_or_rise_at_once(tmp_path):
    lanes = Lanes(tmp_path, Fault("errno", 1, "read", code=errno.EIO), raises_when_full=True)
    record = lanes.write(1)
    lanes.writes.finish_oldest()
    lanes.reads.start(record, lanes.pool.take(SIZE), Priority.DEMAND)
    with pytest.raises(ActivationLostError, match="EIO"):
        lanes.reads.finish(record)
    lanes.engine.close()
    full = Lanes(tmp_path, Fault("errno", 1, "write", code=errno.ENOSPC), raises_when_full=True)
    full.write(1)
    with pytest.raises(StorageError, match="ENOSPC"):
        full.writes.finish_oldest()
    assert full.spools.used_bytes == 0
    full.engine.close()


def test_what_is_done_is_not_counted_as_waiting(lanes):
    record = lanes.write(1)
    done = threading.Event()
    record.holdings.stores[0].add_done_callback(lambda _: done.set())
    assert done.wait(10)
    wait_for(record.holdings.stores, lanes.counts)
    assert lanes.counts.stall_seconds == 0
