"""What does the meter cost when off, and when on?

One event is counted in four states (no call at all, nobody listening, one meter, two nested), bare
and beside the smallest work that shorthaul counts: a read of 4 KiB, from the page cache, where it
is as short as a read can be, and past it from the disk.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import shorthaul as sh
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, Measured, not_compared
from benchmarks.measuring.page_cache import make_warm
from shorthaul.meter import record_kept, record_move

EVENTS = 1000
READ_BYTES = 4096
FILE_BYTES = EVENTS * READ_BYTES
BARE = "no meter in the code"


def measure(answer: Answer) -> None:
    moves = answer.compare(
        "count one move",
        in_every_state(lambda: None, lambda: record_move("disk", "memory", READ_BYTES, "rows")),
        baseline=BARE,
        same=not_compared,
    )
    answer.compare(
        "count bytes kept and given back",
        in_every_state(lambda: None, _keep_and_give_back),
        baseline=BARE,
        same=not_compared,
    )
    with file_of_bytes() as path:
        for case, flags in (
            ("read 4 KiB from the page cache", 0),
            ("read 4 KiB past it, from the disk", os.O_DIRECT),
        ):
            make_warm(path)
            with random_reads(path, flags) as (read, read_and_count):
                reads = answer.compare(
                    case, in_every_state(read, read_and_count), baseline=BARE, same=not_compared
                )
            add_cost(answer, reads, moves)
    answer.state(
        page_cache="warm, and passed by with O_DIRECT in the last case", events="1,000 per call"
    )


def _keep_and_give_back() -> None:
    record_kept(READ_BYTES, "rows")
    record_kept(-READ_BYTES, "rows")


def in_every_state(bare: Callable[[], object], counted: Callable[[], object]) -> list[Arm]:
    """The same work without an event, and with one while none, one and two meters are open."""

    def repeat(work: Callable[[], object], meters: int) -> Callable[[], None]:
        def run() -> None:
            with contextlib.ExitStack() as stack:
                for _ in range(meters):
                    stack.enter_context(sh.meter())
                for _ in range(EVENTS):
                    work()

        return run

    return [
        Arm(BARE, repeat(bare, 0), events=EVENTS),
        Arm("off", repeat(counted, 0), events=EVENTS),
        Arm("on", repeat(counted, 1), events=EVENTS),
        Arm("on, two nested", repeat(counted, 2), events=EVENTS),
    ]


@contextlib.contextmanager
def file_of_bytes() -> Iterator[Path]:
    """A file to read from, on the disk of the scratch directory."""
    with tempfile.NamedTemporaryFile(dir=sh.settings.scratch_directory) as file:
        file.write(os.urandom(FILE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        yield Path(file.name)


@contextlib.contextmanager
def random_reads(
    path: Path, flags: int
) -> Iterator[tuple[Callable[[], object], Callable[[], object]]]:
    """A read of the next place in a scattered order, and the same with its event."""
    buffer = mmap.mmap(-1, READ_BYTES)  # page-aligned, as O_DIRECT demands
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    place = 0

    def read() -> None:
        nonlocal place
        place = (place + 617) % EVENTS  # a step without a common factor visits every place
        os.preadv(descriptor, [buffer], place * READ_BYTES)

    def read_and_count() -> None:
        read()
        record_move("disk", "memory", READ_BYTES, "rows")

    try:
        yield read, read_and_count
    finally:
        os.close(descriptor)
        buffer.close()


def add_cost(answer: Answer, reads: list[Measured], moves: list[Measured]) -> None:
    """Set the bare cost of an event in relation to the bare read.

    The difference of two long reads drowns in the disk's noise; this quotient does not.
    """
    read_seconds = reads[0].wall_seconds.median
    bare_seconds = moves[0].wall_seconds.median
    for row, move in zip(answer.rows[-len(reads) :], moves, strict=True):
        row["figures"]["added_to_read_share"] = (
            move.wall_seconds.median - bare_seconds
        ) / read_seconds


if __name__ == "__main__":
    answer_question(measure)
