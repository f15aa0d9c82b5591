"""What does a table of features cost two loader workers, and how fast are its batches?

A table of 1.5 million rows of 512 bytes, batches of 50,000 random rows (25.6 MB), `DataLoader` with two
workers. Arms: workers that gather from a tensor and send the rows; workers that gather from a table in
shared memory and send the rows; workers that send ids, with the gather here into reused memory; and
this last without workers. After a pass each worker is asked what it holds: `private_bytes_each` are pages of its
own, among which a copy of the table would be, `shared_bytes_each` those that it shares with others.

A full run takes about two minutes.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import shorthaul as sh
from benchmarks.arms.loader_arms import BatchIds, GatheredBatches
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, same_bits

ROWS, WIDTH, ASKED, COUNT = 1_500_000, 128, 50_000, 12
USUAL = "workers gather from a tensor"


class Loading:
    """One way to load the batches, with workers that stay from one pass to the next."""

    def __init__(
        self, batches: Any, start: str | None, table: Any = None, workers: int = 2
    ) -> None:
        self.table = table  # where rows are gathered here
        self.loader = torch.utils.data.DataLoader(
            batches,
            batch_size=None,
            num_workers=workers,
            persistent_workers=workers > 0,
            multiprocessing_context=start if workers else None,
        )

    def batches(self) -> Iterator[torch.Tensor]:
        """The rows of each batch."""
        for each in self.loader:
            yield each if self.table is None else self.table.gather(each)

    def run(self) -> torch.Tensor:
        """Load everything; one number of each row of the last batch stands for the rest."""
        for rows in self.batches():
            last = rows
        return last[:, 0].clone()


def read_memory(process: int) -> tuple[int, int]:
    """Bytes that are the process's own, and bytes that it shares with others."""
    own = shared = 0
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.startswith(("Private_", "Shared_")):
            count = int(rest.split()[0]) * 1024
            own, shared = (
                (own + count, shared) if name.startswith("Private_") else (own, shared + count)
            )
    return own, shared


def memory_of_workers() -> dict[int, tuple[int, int]]:
    return {
        each.pid: read_memory(each.pid) for each in multiprocessing.active_children() if each.pid
    }


def measure(answer: Answer) -> None:
    rows = 100_000 if answer.is_quick else ROWS
    table = torch.randn(rows, WIDTH)
    asked = 5_000 if answer.is_quick else ASKED
    batches = [torch.randint(rows, (asked,)) for _ in range(COUNT)]
    shared = sh.unified(table, shared=True)
    loadings = {
        USUAL: Loading(GatheredBatches(table, batches), "fork"),
        "workers gather from a shared table": Loading(GatheredBatches(shared, batches), "fork"),
        "workers send ids": Loading(BatchIds(batches), "fork", shared),
        "no workers": Loading(BatchIds(batches), None, shared, workers=0),
    }
    figures: dict[str, dict[str, float]] = {}
    for name, loading in loadings.items():
        before = memory_of_workers()
        loading.run()
        own = [both for process, both in memory_of_workers().items() if process not in before]
        if own:
            figures[name] = {
                "private_bytes_each": max(private for private, _ in own),
                "shared_bytes_each": max(kept for _, kept in own),
            }
    answer.state(
        table=f"{rows:,} rows of {4 * WIDTH} bytes, {rows * WIDTH * 4:,} bytes in all",
        batch=f"{asked:,} random rows; times are per batch",
        workers="two, forked, kept from pass to pass; memory counts what forking shares as shared",
    )
    answer.compare(
        f"{asked:,} rows",
        [Arm(name, loading.run, events=COUNT) for name, loading in loadings.items()],
        baseline=USUAL,
        same=same_bits,
        figures=figures,
        sample_seconds=0.0,
    )


if __name__ == "__main__":
    answer_question(measure)
