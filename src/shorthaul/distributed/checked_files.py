"""Files of parts that are checked before they are used, by all ranks at the same time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shorthaul.distributed.partition.manifest import Manifest, holds_ids, part_of_file
from shorthaul.distributed.ranks.agreement import share_problem
from shorthaul.distributed.ranks.line import Line
from shorthaul.distributed.ranks.wire import Wire

# Of the time that ranks wait for each other: how long one reads before it gives a sign of life.
_SLICE = 0.1


@dataclass(frozen=True)
class FilesToCheck:
    """What one rank reads, and what of it it is to add up; others add up the rest."""

    folder: Path
    manifest: Manifest
    near_parts: tuple[int, ...]  # whose files it reads
    own_parts: tuple[int, ...]  # whose files it adds up
    beside: tuple[int, ...]  # ranks that read the same copy, and share the work
    rank: int

    def is_read(self, name: str) -> bool:
        """Whether a file must be there, with its size."""
        part = part_of_file(name)
        return part is None or part in self.near_parts

    def is_own_work(self, name: str) -> bool:
        """Whether this rank adds up a file."""
        part = part_of_file(name)
        if part is not None:
            return part in self.own_parts
        shared = [each for each in self.manifest.files if part_of_file(each) is None]
        return self.beside[shared.index(name) % len(self.beside)] == self.rank

    def check(self, *, checksums: bool) -> Iterator[str]:
        """Raise when something is wrong, block by block.

        Ids go to kernels that do not look whether they are in range, so their files are always added up.
        """
        self.manifest.require_files(self.folder, self.is_read)

        def is_added_up(name: str) -> bool:
            return self.is_own_work(name) and (checksums or holds_ids(name))

        yield from self.manifest.require_checksums(self.folder, is_added_up)


def check_files(line: Line, files: FilesToCheck, parts: str, *, checksums: bool) -> None:
    """Raise on every rank when a file of any is missing or not the one that was written.

    Adding up much takes longer than ranks wait for each other, so they meet now and then.
    """
    left = files.check(checksums=checksums)
    where = f"checking the files of {files.folder}"
    is_done = False
    while not is_done:
        problem, is_own_done = _work(left, line.timeout_seconds * _SLICE)

        def meet(
            wire: Wire, problem: Exception | None = problem, is_own_done: bool = is_own_done
        ) -> bool:
            share_problem(wire, problem, parts)
            return all(done for (done,) in wire.gather_numbers([is_own_done]))

        is_done = line.run(where, meet)


def _work(left: Iterator[str], seconds: float) -> tuple[Exception | None, bool]:
    """Check for some time: what was wrong, and whether nothing is left."""
    stop = time.monotonic() + seconds
    try:
        for _ in left:
            if time.monotonic() > stop:
                return None, False
    except Exception as error:
        return error, True
    return None, True
