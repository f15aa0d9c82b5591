"""How close do the storage engines come to fio, and how far are they from a memory map?

Random reads and writes of 4 KiB, and reads and writes of 8 MiB in order, from a file that is not in
the page cache, past which all arms but the memory map go (O_DIRECT). fio runs with the same depth on
the same file: io_uring against our ring, one thread per request (psync) against our threads. The
memory map is advised MADV_RANDOM, as the default read-ahead would fetch what nobody asked for.

fio's time is what fio itself reports, without its start. Ours is from the first submission to the
last byte, with one ticket for all small requests and one for each large one.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import shorthaul as sh
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, Measurable, Sample, not_compared
from benchmarks.measuring.page_cache import make_cold
from shorthaul.storage import (
    BufferPool,
    StorageEngine,
    StorageFile,
    ThreadEngine,
    UringEngine,
    open_file,
)

SMALL, LARGE = 4096, 8 * 2**20
THREADS = 64  # the best of 16, 32 and 64, for fio and for us; processors are busy from there on
DEPTH = 256
LARGE_DEPTH = 8


@dataclass(frozen=True)
class FioArm:
    """fio, timed by itself."""

    name: str
    path: Path
    action: str  # read, write, randread, randwrite
    block_bytes: int
    count: int
    engine: str
    depth: int
    jobs: int = 1

    can_repeat = True

    def sample(self, calls: int) -> Sample:
        """Run fio once for each call; the time of one request."""
        walls, cpus = [], []
        for _ in range(calls):
            wall, cpu = self._run()
            walls.append(wall)
            cpus.append(cpu)
        return Sample(sum(walls) / calls / self.count, sum(cpus) / calls / self.count)

    def result(self) -> object:
        """Nothing that could be compared."""
        return None

    def _run(self) -> tuple[float, float]:
        size_bytes = self.path.stat().st_size
        command = [
            "fio",
            "--name=benchmark",
            f"--filename={self.path}",
            f"--rw={self.action}",
            f"--bs={self.block_bytes}",
            f"--ioengine={self.engine}",
            f"--iodepth={self.depth}",
            f"--numjobs={self.jobs}",
            f"--number_ios={self.count // self.jobs}",
            f"--size={size_bytes}",
            *(["--offset_increment=0", "--norandommap"] if "rand" in self.action else []),
            "--thread",
            "--direct=1",
            "--randrepeat=0",
            "--group_reporting",
            "--output-format=json",
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
        way = job["write" if "write" in self.action else "read"]
        seconds = way["total_ios"] / way["iops"] * (self.count / way["total_ios"])
        return seconds, seconds * (job["usr_cpu"] + job["sys_cpu"]) / 100 * self.jobs


def measure(answer: Answer) -> None:
    if shutil.which("fio") is None:
        raise SystemExit("this question needs fio: apt-get install fio")
    size_bytes = 2**28 if answer.is_quick else 2**31
    small_count = 2_048 if answer.is_quick else 60_000
    large_count = size_bytes // LARGE // 2
    rings = UringEngine(depth=DEPTH)
    threads = ThreadEngine(depth=THREADS)
    with (
        scratch_file(size_bytes) as path,
        open_file(path, "write") as file,
        BufferPool("1200MiB") as pool,
        rings,
        threads,
    ):
        for action in ("read", "write"):
            arms = small_arms(path, file, pool, action, small_count, (rings, threads))
            answer.compare(
                f"random 4 KiB {action}s", arms, baseline="fio, io_uring", same=not_compared
            )
        for action in ("read", "write"):
            arms = large_arms(path, file, pool, action, large_count, (rings, threads))
            answer.compare(
                f"8 MiB {action}s in order", arms, baseline="fio, io_uring", same=not_compared
            )
    answer.state(
        page_cache="cold before each sample; a virtual machine's host may cache all the same",
        file=f"{size_bytes / 2**30:g} GiB, written whole beforehand",
        depth=f"ring {DEPTH} for 4 KiB and {LARGE_DEPTH} for 8 MiB; {THREADS} threads for 4 KiB",
    )


def small_arms(
    path: Path,
    file: StorageFile,
    pool: BufferPool,
    action: str,
    count: int,
    engines: tuple[StorageEngine, StorageEngine],
) -> list[Measurable]:
    """fio twice, our engines, and for reads the memory map."""
    arms: list[Measurable] = [
        FioArm("fio, io_uring", path, f"rand{action}", SMALL, count, "io_uring", DEPTH),
        FioArm(f"fio, {THREADS} threads", path, f"rand{action}", SMALL, count, "psync", 1, THREADS),
    ]
    generator = np.random.default_rng(0)
    places = file.size_bytes // SMALL

    def ours(engine: StorageEngine) -> Callable[[], None]:
        buffer = pool.take(count * SMALL)
        buffer.memory[:] = 1

        def read() -> None:
            offsets = generator.integers(0, places, count) * SMALL
            engine.read_many(file, offsets, SMALL, buffer, np.arange(count) * SMALL).wait()

        def write() -> None:
            offsets = generator.permutation(places)[:count] * SMALL
            engine.write_many(file, offsets, SMALL, buffer, np.arange(count) * SMALL).wait()

        return read if action == "read" else write

    for name, engine in zip(("our ring", "our threads"), engines, strict=True):
        arms.append(Arm(name, ours(engine), prepare=lambda: make_cold(path), events=count))
    if action == "read":
        few = max(256, count // 30)  # it is slow, and the time is for each read
        run = mapped_reads(path, few, generator)
        arms.append(Arm("memory map, MADV_RANDOM", run, lambda: make_cold(path), events=few))
    return arms


def mapped_reads(path: Path, count: int, generator: np.random.Generator) -> Callable[[], None]:
    """Random reads through a memory map without read-ahead."""

    def run() -> None:
        with open(path, "rb") as plain:
            mapped = mmap.mmap(plain.fileno(), 0, prot=mmap.PROT_READ)
            mapped.madvise(mmap.MADV_RANDOM)
            for place in generator.integers(0, len(mapped) // SMALL, count):
                mapped[int(place) * SMALL : (int(place) + 1) * SMALL]
            mapped.close()

    return run


def large_arms(
    path: Path,
    file: StorageFile,
    pool: BufferPool,
    action: str,
    count: int,
    engines: tuple[StorageEngine, StorageEngine],
) -> list[Measurable]:
    """fio twice and our engines, a few large requests at a time."""
    arms: list[Measurable] = [
        FioArm("fio, io_uring", path, action, LARGE, count, "io_uring", LARGE_DEPTH),
        FioArm("fio, 4 threads", path, action, LARGE, count, "psync", 1, 4),
    ]

    def ours(engine: StorageEngine, buffers: Sequence[npt.NDArray[np.uint8]]) -> Callable[[], None]:
        for buffer in buffers:
            buffer[:] = 1
        move = engine.read if action == "read" else engine.write

        def run() -> None:
            waiting = []
            for at in range(count):
                if len(waiting) == LARGE_DEPTH:
                    waiting.pop(0).wait()
                waiting.append(move(file, at * LARGE, buffers[at % LARGE_DEPTH]))
            for ticket in waiting:
                ticket.wait()

        return run

    ring, threads = engines
    # The pool's buffers are huge pages, which the kernel pins in one piece; fio's are not.
    pooled = [[pool.take(LARGE).memory for _ in range(LARGE_DEPTH)] for _ in engines]
    plain = [np.frombuffer(mmap.mmap(-1, LARGE), np.uint8) for _ in range(LARGE_DEPTH)]
    for name, engine, buffers in (
        ("our ring, 4 KiB pages as fio", ring, plain),
        ("our ring", ring, pooled[0]),
        ("our threads", threads, pooled[1]),
    ):
        run = ours(engine, buffers)
        arms.append(Arm(name, run, prepare=lambda: make_cold(path), events=count))
    return arms


@contextlib.contextmanager
def scratch_file(size_bytes: int) -> Iterator[Path]:
    """A file full of random bytes in the scratch directory, gone afterwards."""
    with tempfile.NamedTemporaryFile(dir=sh.settings.scratch_directory) as file:
        block = np.random.default_rng(1).bytes(LARGE)
        for _ in range(size_bytes // LARGE):
            file.write(block)
        file.flush()
        yield Path(file.name)


if __name__ == "__main__":
    answer_question(measure, rounds=7)
