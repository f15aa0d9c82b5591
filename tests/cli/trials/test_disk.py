"""Measuring a disk: within its limits, only what was written, and equal bytes."""

import math

import numpy as np
import pytest

from shorthaul.cli.trials.disk import (
    BATCHES_UNDER_WAY,
    CHUNK_BYTES,
    CHUNKS_UNDER_WAY,
    LARGEST_FILE_BYTES,
    SMALL_READS,
    choose_file_bytes,
    keep_busy,
    make_round_trip,
    measure_disk,
    measure_random_reads,
)
from shorthaul.errors import StorageError
from shorthaul.meter import meter
from shorthaul.settings import settings
from shorthaul.storage import Fault, MemoryEngine, faulty_engine, open_file


class RecordingTicket:
    """Stands for a request: notes when it is waited for."""

    def __init__(self, index: int, events: list[str]) -> None:
        self.index, self.events = index, events

    def wait(self) -> None:
        self.events.append(f"end {self.index}")


def record(most: int, window: int, limit_seconds: float = math.inf) -> list[str]:
    events: list[str] = []

    def submit(index: int) -> RecordingTicket:
        events.append(f"start {index}")
        return RecordingTicket(index, events)

    done = keep_busy(submit, window, most, limit_seconds)  # type: ignore[arg-type]
    assert done == sum(each.startswith("start") for each in events)
    return events


def test_a_request_starts_when_the_one_a_window_before_has_ended() -> None:
    assert record(most=4, window=2) == [
        *("start 0", "start 1", "end 0", "start 2", "end 1", "start 3"),
        *("end 2", "end 3"),
    ]


def test_a_window_larger_than_the_work() -> None:
    assert record(most=1, window=8) == ["start 0", "end 0"]


def test_when_time_is_up_nothing_more_starts() -> None:
    assert record(most=4, window=2, limit_seconds=0.0) == []


@pytest.mark.parametrize(
    ("free_bytes", "file_bytes"),
    [
        (10 * LARGEST_FILE_BYTES, LARGEST_FILE_BYTES),
        (4 * CHUNK_BYTES, CHUNK_BYTES),
        (4 * CHUNK_BYTES - 1, 0),
        (0, 0),
    ],
)
def test_a_file_of_whole_chunks_in_a_quarter_of_the_room(free_bytes: int, file_bytes: int) -> None:
    assert choose_file_bytes(free_bytes) == file_bytes


def test_every_byte_is_written_once_and_read_once_in_order_and_at_random() -> None:
    file_bytes = 3 * CHUNK_BYTES
    with meter() as before:
        pass
    with settings.override(engine="memory"), meter() as m:
        rates = measure_disk(settings.scratch_directory, file_bytes, limit_seconds=math.inf)
    assert rates.engine == "memory"
    assert rates.file_bytes == file_bytes
    assert m.written_bytes == file_bytes
    assert m.read_bytes == 2 * file_bytes
    rates_per_second = (
        rates.write_bytes_per_second,
        rates.read_bytes_per_second,
        rates.random_reads_per_second,
    )
    assert all(0 < each < math.inf for each in rates_per_second)
    assert m.kept_bytes == before.kept_bytes


def test_random_reads_are_of_distinct_places() -> None:
    with MemoryEngine() as engine, open_file(settings.scratch_directory, "scratch") as file:
        content = np.arange(CHUNK_BYTES // 4, dtype=np.uint32).view(np.uint8)
        engine.write(file, 0, content).wait()
        memory = np.zeros((CHUNKS_UNDER_WAY, CHUNK_BYTES), np.uint8)
        measure_random_reads(engine, file, memory, CHUNK_BYTES, math.inf)
    # Each batch fills the front of a row; the last one of each row is still there.
    rows = memory[:BATCHES_UNDER_WAY, : SMALL_READS * 4096].view(np.uint32)
    numbers = rows.reshape(-1, 1024)
    assert (np.diff(numbers, axis=1) == 1).all()  # whole places, as they were written
    assert len(set(numbers[:, 0].tolist())) == BATCHES_UNDER_WAY * SMALL_READS


@pytest.mark.parametrize("total_bytes", [1, 2**20 + 123, CHUNK_BYTES + 1])
def test_a_round_trip_of_any_length_comes_back_equal(total_bytes: int) -> None:
    said: list[str] = []
    with MemoryEngine() as engine, open_file(settings.scratch_directory, "scratch") as file:
        trip = make_round_trip(engine, file, total_bytes, said.append)
    assert (trip.bytes, trip.is_equal) == (total_bytes, True)
    assert len(said) == 2 * -(-total_bytes // CHUNK_BYTES)


def test_a_single_wrong_bit_is_seen() -> None:
    engine = faulty_engine(MemoryEngine(), [Fault("flip", 1, action="read", bit=77)])
    with engine, open_file(settings.scratch_directory, "scratch") as file:
        assert not make_round_trip(engine, file, 10_000).is_equal


def test_a_failing_disk_is_an_error() -> None:
    engine = faulty_engine(MemoryEngine(), [Fault("errno", 1, action="write")])
    with (
        engine,
        open_file(settings.scratch_directory, "scratch") as file,
        pytest.raises(StorageError, match="EIO"),
    ):
        make_round_trip(engine, file, 10_000)
