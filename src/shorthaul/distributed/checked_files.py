"""Files of parts that are checked before they are used, by all ranks at the same time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shorthaul.distributed.partition.manifest import Manifest
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
        return not name.startswith("part-") or name.split("/")[0] in _folders(self.near_parts)

    def is_own_work(self, name: str) -> bool:
        """Whether this rank adds up a file."""
        if name.startswith("part-"):
            return name.split("/")[0] in _folders(self.own_parts)
        shared = [each for each in self.manifest.files if not each.startswith("part-")]
        return self.beside[shared.index(name) % len(self.beside)] == self.rank

    def check(self, *, checksums: bool) -> Iterator[str]:
        """Raise when something is wrong, block by block."""
        self.manifest.require_files(self.folder, self.is_read)
        if checksums:
            yield from self.manifest.require_checksums(self.folder, self.is_own_work)


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


def _folders(parts: tuple[int, ...]) -> set[str]:
    return {f"part-{part}" for part in parts}
