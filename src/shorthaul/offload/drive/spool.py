"""Room on disk for activations: slots in files without a name.

A spool's file is unlinked from the start, so a killed process leaves nothing behind and nobody else
can open it. Slots are reused as soon as they are free: a training step writes the same sizes in the
same order as the last one, and lands on the same blocks of the drive.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shorthaul.errors import SpoolFullError, StorageError, TemporaryFileSystemError
from shorthaul.storage.file import StorageFile, open_file

BLOCK_BYTES = 4096
GROWTH_BYTES = 256 * 2**20
# What a spool leaves free on its file system, for everybody else.
RESERVE_BYTES = 64 * 2**20


def round_to_blocks(length_bytes: int) -> int:
    """`length_bytes` in whole blocks, and at least one."""
    return max(1, -(-length_bytes // BLOCK_BYTES)) * BLOCK_BYTES


class FreeExtents:
    """Free ranges of a file, neighbours merged; the smallest that fits is taken first."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._lengths: dict[int, int] = {}  # by start

    @property
    def total_bytes(self) -> int:
        """Bytes in all free ranges."""
        return sum(self._lengths.values())

    def take(self, length_bytes: int) -> int | None:
        """The start of a range of that length, no longer free; `None` when there is none."""
        fitting = [start for start in self._starts if self._lengths[start] >= length_bytes]
        if not fitting:
            return None
        start = min(fitting, key=self._lengths.__getitem__)
        left_bytes = self._remove(start) - length_bytes
        if left_bytes:
            self._insert(start + length_bytes, left_bytes)
        return start

    def give(self, start: int, length_bytes: int) -> None:
        """Make a range free; overlapping a free range is a mistake that is noticed."""
        at = bisect.bisect_left(self._starts, start)
        after = self._starts[at] if at < len(self._starts) else None
        before = self._starts[at - 1] if at else None
        if after is not None and start + length_bytes > after:
            raise ValueError(f"bytes {start} to {start + length_bytes} are already free")
        if before is not None and before + self._lengths[before] > start:
            raise ValueError(f"bytes {start} to {start + length_bytes} are already free")
        if after is not None and start + length_bytes == after:
            length_bytes += self._remove(after)
        if before is not None and before + self._lengths[before] == start:
            start, length_bytes = before, length_bytes + self._remove(before)
        self._insert(start, length_bytes)

    def _insert(self, start: int, length_bytes: int) -> None:
        bisect.insort(self._starts, start)
        self._lengths[start] = length_bytes

    def _remove(self, start: int) -> int:
        self._starts.pop(bisect.bisect_left(self._starts, start))
        return self._lengths.pop(start)


@dataclass(frozen=True)
class Slot:
    """A range of a spool's file that belongs to one activation."""

    file: StorageFile
    offset_bytes: int
    length_bytes: int


class Spool:
    """One scratch file on one file system."""

    def __init__(self, directory: Path, *, allow_memory: bool = False) -> None:
        kind = read_file_system(directory)
        if kind in ("tmpfs", "ramfs") and not allow_memory:
            raise TemporaryFileSystemError(directory, kind)
        # By the file alone from here on: the process may go elsewhere, and the directory may go.
        self.directory = directory.absolute()
        self.file = open_file(self.directory, "scratch")
        self.reserved_bytes = 0
        self._free = FreeExtents()

    @property
    def used_bytes(self) -> int:
        """Bytes in slots that are taken."""
        return self.reserved_bytes - self._free.total_bytes

    def take(self, length_bytes: int) -> Slot:
        """A slot of at least `length_bytes`, or `SpoolFullError`."""
        needed_bytes = round_to_blocks(length_bytes)
        start = self._free.take(needed_bytes)
        if start is None:
            self._grow(needed_bytes)
            start = self._free.take(needed_bytes)
            assert start is not None, "a spool that has just grown has room"
        return Slot(self.file, start, needed_bytes)

    def give(self, slot: Slot) -> None:
        """Take a slot back. Nothing may be reading or writing it."""
        self._free.give(slot.offset_bytes, slot.length_bytes)

    def close(self) -> None:
        """Give the disk space back."""
        self.file.close()

    def _grow(self, needed_bytes: int) -> None:
        # Reserved up front: the disk shows now that it is full, and writes inside a reserved range
        # do not take the file's lock one after the other.
        refusal = None
        for more_bytes in (max(needed_bytes, GROWTH_BYTES), needed_bytes):
            if self._free_bytes() - RESERVE_BYTES >= more_bytes:
                try:
                    self.file.reserve(self.reserved_bytes + more_bytes)
                except StorageError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                        raise
                    refusal = os.strerror(error.errno)
                    continue
                self._free.give(self.reserved_bytes, more_bytes)
                self.reserved_bytes += more_bytes
                return
        raise SpoolFullError(
            self.directory,
            needed_bytes,
            used_bytes=self.used_bytes,
            free_bytes=self._free_bytes(),
            reserve_bytes=RESERVE_BYTES,
            refusal=refusal,
        )

    def _free_bytes(self) -> int:
        """Bytes that nobody uses on the file system."""
        found = os.fstatvfs(self.file.buffered_descriptor)
        return found.f_bavail * found.f_frsize


class SpoolSet:
    """The room for one activation at a time, over one drive or several.

    `turns` puts each activation on the next drive; `stripes` cuts each into one piece per drive, so
    that even a single one moves at the drives' joint rate.
    """

    def __init__(
        self, directories: Sequence[Path], *, spread: str = "turns", allow_memory: bool = False
    ) -> None:
        if not directories or spread not in ("turns", "stripes"):
            raise ValueError(
                f"expected at least one directory and spread 'turns' or 'stripes', "
                f"got {len(directories)} and {spread!r}"
            )
        self.spread = spread
        with contextlib.ExitStack() as opened:  # one that is refused closes those before it
            self.spools = tuple(
                opened.enter_context(contextlib.closing(Spool(each, allow_memory=allow_memory)))
                for each in directories
            )
            opened.pop_all()
        self._next = 0

    @property
    def used_bytes(self) -> int:
        """Bytes in slots that are taken, on all drives."""
        return sum(each.used_bytes for each in self.spools)

    def take(self, length_bytes: int) -> tuple[Slot, ...]:
        """Slots that together hold `length_bytes` in order, or `SpoolFullError` and none taken."""
        if self.spread == "stripes":
            return self._take_stripes(length_bytes)
        for attempt in range(len(self.spools)):
            spool = self.spools[self._next]
            self._next = (self._next + 1) % len(self.spools)
            try:
                return (spool.take(length_bytes),)
            except SpoolFullError:
                if attempt + 1 == len(self.spools):
                    raise
        raise AssertionError("a spool set has at least one spool")

    def give(self, slots: Sequence[Slot]) -> None:
        """Take slots back to the spools that they came from."""
        owners = {id(spool.file): spool for spool in self.spools}
        for slot in slots:
            owners[id(slot.file)].give(slot)

    def close(self) -> None:
        """Give the disk space back."""
        for spool in self.spools:
            spool.close()

    def _take_stripes(self, length_bytes: int) -> tuple[Slot, ...]:
        blocks = round_to_blocks(length_bytes) // BLOCK_BYTES
        count = len(self.spools)
        taken: list[Slot] = []
        try:
            for index, spool in enumerate(self.spools):
                share = blocks * (index + 1) // count - blocks * index // count
                if share:
                    taken.append(spool.take(share * BLOCK_BYTES))
        except SpoolFullError:
            self.give(taken)
            raise
        return tuple(taken)


def read_file_system(directory: Path) -> str:
    """The type of the file system that `directory` is on, such as `ext4` or `tmpfs`."""
    device = directory.stat().st_dev
    numbers = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            fields, _, described = line.partition(" - ")
            if fields.split()[2] == numbers:
                return described.split()[0]
    return "unknown"
