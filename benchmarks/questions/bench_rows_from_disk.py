"""How many random rows per second come from a cold file, and what do they cost?

A table of 4 GiB on disk, none of it in the page cache when an arm starts. The memory maps are the usual
way (the first with the kernel's read-ahead, the second advised MADV_RANDOM). fio makes requests of the same
size past the page cache with nothing to plan, sort or copy: from 32 threads that each wait for one `pread`,
and from one ring at the same depth as ours. Ours is `sh.open(path).gather(ids)`: planning, reading, and rows in the order of the
ids. Slow arms read fewer rows; times are per row. Rows within 8 KiB of each other are read as one, so
`read_bytes_per_row` may exceed what fio reads.

A full run takes about five minutes, and 4 GiB of disk.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

import shorthaul as sh
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, Measurable, same_bits
from benchmarks.measuring.page_cache import make_cold
from benchmarks.questions.bench_storage import FioArm

DEPTH, THREADS = 256, 32
COMPARED = 100  # rows of each arm that are compared with the others'
BLOCK_BYTES = 16 * 2**20


def same_rows(expected: object, got: object) -> str:
    """Bit for bit; fio hands nothing out."""
    return "" if got is None else same_bits(expected, got)


def mapped_arm(name: str, path: Path, width: int, ids: torch.Tensor, advice: int | None) -> Arm:
    def run() -> torch.Tensor:
        table = np.memmap(path, np.int32, "r").reshape(-1, width)
        if advice is not None:
            table._mmap.madvise(advice)  # type: ignore[attr-defined]
        rows = table[ids.numpy()]
        table._mmap.close()  # type: ignore[attr-defined]
        return torch.from_numpy(np.asarray(rows))[:COMPARED].clone()

    return Arm(name, run, prepare=lambda: make_cold(path), events=len(ids))


def our_arm(path: Path, width: int, ids: torch.Tensor) -> tuple[Arm, Callable[[], float]]:
    """The arm, and what one row of it read from the disk."""
    table = sh.open(path, dtype=torch.int32, shape=(-1, width))

    def run() -> torch.Tensor:
        return table.gather(ids)[:COMPARED].clone()

    def read_bytes_per_row() -> float:
        stats = table.stats()
        return stats.read_bytes / max(1, stats.rows_asked)

    arm = Arm("shorthaul", run, prepare=lambda: make_cold(path), events=len(ids))
    return arm, read_bytes_per_row


def measure(answer: Answer) -> None:
    if shutil.which("fio") is None:
        raise SystemExit("this question needs fio: apt-get install fio")
    size_bytes = 2**28 if answer.is_quick else 2**32
    count = 3_000 if answer.is_quick else 150_000
    generator = torch.Generator().manual_seed(0)
    with scratch_table(size_bytes) as path:
        for row_bytes in (512, 4096):
            width = row_bytes // 4
            ids = torch.randint(size_bytes // row_bytes, (count,), generator=generator)
            ours, read_bytes_per_row = our_arm(path, width, ids)
            arms: list[Measurable] = [
                mapped_arm(
                    "memory map, MADV_RANDOM",
                    path,
                    width,
                    ids[: max(COMPARED, count // 15)],
                    mmap.MADV_RANDOM,
                ),
                mapped_arm("memory map", path, width, ids[: max(COMPARED, count // 500)], None),
                FioArm(
                    f"fio, {THREADS} threads of pread",
                    path,
                    "randread",
                    row_bytes,
                    count,
                    "psync",
                    1,
                    THREADS,
                ),
                FioArm("fio, io_uring", path, "randread", row_bytes, count, "io_uring", DEPTH),
                ours,
            ]
            measured = answer.compare(
                f"rows of {row_bytes} B", arms, baseline="memory map, MADV_RANDOM", same=same_rows
            )
            for row, each in zip(answer.rows[-len(measured) :], measured, strict=True):
                row["figures"]["rows_per_second"] = 1 / each.wall_seconds.median
            answer.rows[-1]["figures"]["read_bytes_per_row"] = read_bytes_per_row()
    answer.state(
        page_cache="cold before each sample; a virtual machine's host may cache all the same",
        table=f"{size_bytes / 2**30:g} GiB, {count:,} ids drawn evenly with repeats",
        depth=f"{DEPTH} for fio and ours",
    )


@contextlib.contextmanager
def scratch_table(size_bytes: int) -> Iterator[Path]:
    """A file full of random bytes in the scratch directory, gone afterwards."""
    with tempfile.NamedTemporaryFile(dir=sh.settings.scratch_directory, suffix=".rows") as file:
        generator = np.random.default_rng(1)
        for _ in range(size_bytes // BLOCK_BYTES):
            file.write(generator.bytes(BLOCK_BYTES))
        file.flush()
        os.fsync(file.fileno())
        yield Path(file.name)


if __name__ == "__main__":
    answer_question(measure, rounds=5)
