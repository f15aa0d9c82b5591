"""A memory cgroup for the processes of a benchmark, where the system lets us make one.

What lies in the page cache on behalf of its processes counts, as it does in a container.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

CGROUPS = Path("/sys/fs/cgroup")


_numbers = itertools.count()


class MemoryLimitError(OSError):
    """No cgroup with a limit could be made here."""


@dataclass(frozen=True)
class Usage:
    """What the processes of a cgroup hold, or held at most."""

    resident_bytes: int  # of the processes themselves, now
    page_cache_bytes: int  # of files that they read, now
    largest_bytes: int  # both together, at any time


class MemoryLimit:
    """A cgroup of at most `limit_bytes`, there while the `with` block runs."""

    def __init__(self, name: str, limit_bytes: int, root: Path = CGROUPS) -> None:
        self.limit_bytes = limit_bytes
        self.is_old = (root / "memory" / "memory.limit_in_bytes").exists()
        self.folder = (
            root / "memory" if self.is_old else root
        ) / f"{name}-{os.getpid()}-{next(_numbers)}"

    def __enter__(self) -> MemoryLimit:
        limit = "memory.limit_in_bytes" if self.is_old else "memory.max"
        try:
            self.folder.mkdir()
            try:
                (self.folder / limit).write_text(str(self.limit_bytes))
            except OSError:
                self.folder.rmdir()
                raise
        except OSError as error:
            raise MemoryLimitError(
                f"no memory cgroup can be made in {self.folder.parent} ({error.strerror}): run as root, "
                "where the memory controller is on."
            ) from error
        return self

    def add(self, process: int) -> None:
        """Have a process, and those that it starts, live within the limit."""
        (self.folder / "cgroup.procs").write_text(str(process))

    def read(self) -> Usage:
        """What is used."""
        names = ("total_rss", "total_cache") if self.is_old else ("anon", "file")
        peak = "memory.max_usage_in_bytes" if self.is_old else "memory.peak"
        lines = (self.folder / "memory.stat").read_text().splitlines()
        found = {name: int(value) for name, value in (line.split() for line in lines)}
        return Usage(*(found[name] for name in names), int((self.folder / peak).read_text()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.folder.rmdir()
