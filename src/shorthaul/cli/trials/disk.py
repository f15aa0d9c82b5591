"""How fast the disk under a directory is, through the same engine that shorthaul uses.

Three figures, each within a time limit: writing and reading one request of 8 MiB after another, and
reading 4 KiB at random places. A file without a name is used, so nothing is left behind. A round
trip checks that what was written is what is read.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from shorthaul.storage import (
    Buffer,
    BufferPool,
    StorageEngine,
    StorageFile,
    Ticket,
    open_engine,
    open_file,
)
from shorthaul.storage.buffer_pool import choose_class_bytes
from shorthaul.units import format_bytes

CHUNK_BYTES = 8 * 2**20
CHUNKS_UNDER_WAY = 4
LARGEST_FILE_BYTES = 256 * 2**20

SMALL_BYTES = 4096
SMALL_READS = 256  # in one batch: as many as the deepest queue takes
BATCHES_UNDER_WAY = 2

Memory = npt.NDArray[np.uint8]  # CHUNKS_UNDER_WAY rows of CHUNK_BYTES


@dataclass(frozen=True)
class DiskRates:
    """What was measured, and through what."""

    engine: str
    is_direct: bool
    file_bytes: int
    write_bytes_per_second: float
    read_bytes_per_second: float
    random_reads_per_second: float


@dataclass(frozen=True)
class RoundTrip:
    """Bytes that were written and read back, and whether they came back as they were."""

    bytes: int
    is_equal: bool
    write_bytes_per_second: float
    read_bytes_per_second: float


def make_round_trip(
    engine: StorageEngine,
    file: StorageFile,
    total_bytes: int,
    say: Callable[[str], None] = lambda _: None,
) -> RoundTrip:
    """Write random bytes through `engine`, read them back, compare; `say` hears how far it is."""
    why = "round trip"
    with (
        BufferPool(2 * choose_class_bytes(total_bytes), why=why) as pool,
        pool.take(total_bytes) as source,
        pool.take(total_bytes) as target,
    ):
        torch.from_numpy(source.memory).random_()
        target.memory[:] = 0  # so that reading is not measured with page faults
        file.reserve(total_bytes)

        def write(index: int) -> Ticket:
            say(f"writing {format_bytes(index * CHUNK_BYTES)} of {format_bytes(total_bytes)}")
            return engine.write(file, index * CHUNK_BYTES, _chunk(source, index), why=why)

        def read(index: int) -> Ticket:
            say(f"reading {format_bytes(index * CHUNK_BYTES)} of {format_bytes(total_bytes)}")
            return engine.read(file, index * CHUNK_BYTES, _chunk(target, index), why=why)

        rates = []
        for transfer in (write, read):
            started = time.perf_counter()
            keep_busy(transfer, CHUNKS_UNDER_WAY, -(-total_bytes // CHUNK_BYTES), math.inf)
            rates.append(total_bytes / (time.perf_counter() - started))
        return RoundTrip(total_bytes, np.array_equal(source.memory, target.memory), *rates)


def _chunk(buffer: Buffer, index: int) -> npt.NDArray[np.uint8]:
    return buffer.memory[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]


def choose_file_bytes(free_bytes: int) -> int:
    """How large a file to measure with: whole chunks, at most a quarter of the free space."""
    return min(LARGEST_FILE_BYTES, free_bytes // 4) // CHUNK_BYTES * CHUNK_BYTES


def measure_disk(directory: Path, file_bytes: int, limit_seconds: float = 1.0) -> DiskRates:
    """Measure with a file of at most `file_bytes`, and `limit_seconds` for each figure."""
    memory_bytes = CHUNKS_UNDER_WAY * CHUNK_BYTES
    with (
        open_file(directory, "scratch") as file,
        open_engine() as engine,
        BufferPool(memory_bytes, why="disk measurement") as pool,
        pool.take(memory_bytes) as buffer,
    ):
        file.reserve(file_bytes)
        memory = buffer.memory.reshape(CHUNKS_UNDER_WAY, CHUNK_BYTES)
        # Random bytes: a file system that compresses must not look fast.
        memory[:] = np.frombuffer(os.urandom(CHUNK_BYTES), np.uint8)
        chunks, write_rate = measure_writes(engine, file, memory, file_bytes, limit_seconds)
        written_bytes = chunks * CHUNK_BYTES  # reads must stay in it: a hole costs no disk
        # Where there is no O_DIRECT, what was written would still lie in the page cache.
        os.posix_fadvise(file.buffered_descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return DiskRates(
            engine.name,
            file.is_direct,
            written_bytes,
            write_rate,
            measure_reads(engine, file, memory, written_bytes, limit_seconds),
            measure_random_reads(engine, file, memory, written_bytes, limit_seconds),
        )


def measure_writes(
    engine: StorageEngine,
    file: StorageFile,
    memory: Memory,
    file_bytes: int,
    limit_seconds: float,
) -> tuple[int, float]:
    """How many chunks were written, and bytes per second until they were on the disk itself."""

    def write(index: int) -> Ticket:
        source = memory[index % CHUNKS_UNDER_WAY]
        return engine.write(file, index * CHUNK_BYTES, source, why="disk measurement")

    started = time.perf_counter()
    chunks = keep_busy(write, CHUNKS_UNDER_WAY, file_bytes // CHUNK_BYTES, limit_seconds)
    file.sync()
    return chunks, chunks * CHUNK_BYTES / (time.perf_counter() - started)


def measure_reads(
    engine: StorageEngine,
    file: StorageFile,
    memory: Memory,
    written_bytes: int,
    limit_seconds: float,
) -> float:
    """Bytes per second of reading what was written, from its beginning."""

    def read(index: int) -> Ticket:
        target = memory[index % CHUNKS_UNDER_WAY]
        return engine.read(file, index * CHUNK_BYTES, target, why="disk measurement")

    started = time.perf_counter()
    chunks = keep_busy(read, CHUNKS_UNDER_WAY, written_bytes // CHUNK_BYTES, limit_seconds)
    return chunks * CHUNK_BYTES / (time.perf_counter() - started)


def measure_random_reads(
    engine: StorageEngine,
    file: StorageFile,
    memory: Memory,
    written_bytes: int,
    limit_seconds: float,
) -> float:
    """Reads of 4 KiB per second, each place read once, in random order."""
    order = np.random.default_rng(0).permutation(written_bytes // SMALL_BYTES) * SMALL_BYTES
    places = np.arange(SMALL_READS) * SMALL_BYTES

    def read(index: int) -> Ticket:
        offsets = order[index * SMALL_READS : (index + 1) * SMALL_READS]
        target = memory[index % BATCHES_UNDER_WAY]
        return engine.read_many(file, offsets, SMALL_BYTES, target, places, why="disk measurement")

    started = time.perf_counter()
    batches = keep_busy(read, BATCHES_UNDER_WAY, len(order) // SMALL_READS, limit_seconds)
    return batches * SMALL_READS / (time.perf_counter() - started)


def keep_busy(submit: Callable[[int], Ticket], window: int, most: int, limit_seconds: float) -> int:
    """Keep `window` requests under way, until `most` or the time limit; returns how many ended.

    Request `i` is submitted when request `i - window` has ended, so the two may share memory.
    """
    under_way: deque[Ticket] = deque()
    started = time.perf_counter()
    submitted = 0
    while submitted < most and time.perf_counter() - started < limit_seconds:
        if len(under_way) == window:
            under_way.popleft().wait()
        under_way.append(submit(submitted))
        submitted += 1
    for ticket in under_way:
        ticket.wait()
    return submitted
