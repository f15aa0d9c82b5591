"""Does a gather cost what it asks for, or what the table is large?

The same number of random rows of 512 bytes from tables of 1, 4 and 16 GB, in memory and on disk. In
memory a larger table has fewer of its rows, and of its page tables, in the caches; on disk nothing is
kept. Each size is compared with the smallest. `x[ids]` and a memory map (MADV_RANDOM) stand beside it.

A full run takes about six minutes, 17 GB of memory and 16 GB of disk.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import torch

import shorthaul as sh
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, not_compared
from benchmarks.measuring.page_cache import make_cold
from benchmarks.questions.bench_rows_from_disk import COMPARED, mapped_arm, scratch_table

ROW_BYTES = 512
SIZES_GB = (1, 4, 16)


def memory_arms(size_bytes: int, count: int) -> list[Arm]:
    table = torch.empty(size_bytes // ROW_BYTES, ROW_BYTES // 4).fill_(1.0)
    ids = torch.randint(len(table), (count,), generator=torch.Generator().manual_seed(0))
    unified = sh.unified(table)
    return [
        Arm("x[ids]", lambda: table[ids], events=count),
        Arm("shorthaul", lambda: unified.gather(ids), events=count),
    ]


def disk_arms(path: Path, count: int) -> list[Arm]:
    table = sh.open(path, dtype=torch.int32, shape=(-1, ROW_BYTES // 4))
    ids = torch.randint(len(table), (count,), generator=torch.Generator().manual_seed(0))
    few = ids[: max(COMPARED, count // 50)]
    return [
        mapped_arm("memory map, MADV_RANDOM", path, ROW_BYTES // 4, few, mmap.MADV_RANDOM),
        Arm("shorthaul", lambda: table.gather(ids), prepare=lambda: make_cold(path), events=count),
    ]


def measure(answer: Answer) -> None:
    count = 5_000 if answer.is_quick else 150_000
    sizes = [each * (10**6 if answer.is_quick else 10**9) for each in SIZES_GB]
    for size_bytes in sizes:
        ask(answer, f"memory, {size_bytes / 1e9:g} GB", memory_arms(size_bytes, count))
    for size_bytes in sizes:
        with scratch_table(max(2**24, size_bytes)) as path:
            ask(answer, f"disk, {size_bytes / 1e9:g} GB", disk_arms(path, count))
    answer.state(
        rows=f"{count:,} of {ROW_BYTES} bytes, drawn evenly with repeats",
        page_cache="cold before each sample from disk; a virtual machine's host may cache",
    )


def ask(answer: Answer, case: str, arms: list[Arm]) -> None:
    measured = answer.compare(case, arms, baseline=arms[0].name, same=not_compared)
    for row, each in zip(answer.rows[-len(measured) :], measured, strict=True):
        row["figures"]["rows_per_second"] = 1 / each.wall_seconds.median


if __name__ == "__main__":
    answer_question(measure, rounds=5)
