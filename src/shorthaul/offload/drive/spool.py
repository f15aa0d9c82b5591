"""Room on disk for activations: slots in files without a name.

A spool's file is unlinked from the start, so a killed process leaves nothing behind and nobody else
can open it. Slots are reused as soon as they are free: a training step writes the same sizes in the
same order as the last one, and lands on the same blocks of the drive.

A fork gives the same slots to two processes. Neither writes into a file that the other may read: one
with slots in use is frozen on both sides, which read it until their last slot is given back, and an
empty one stays with the parent. Whoever has no file opens one with the next slot.
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
    """Free ranges of a file, neighbors merged; the smallest that fits is taken first."""

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


class _Room:
    """One file, and which of its ranges are taken."""

    def __init__(self, file: StorageFile) -> None:
        self.file = file
        self.reserved_bytes = 0
        self.free = FreeExtents()

    @property
    def used_bytes(self) -> int:
        """Bytes in slots that are taken."""
        return self.reserved_bytes - self.free.total_bytes

    def reserve(self, more_bytes: int) -> None:
        """Grow by `more_bytes`."""
        self.file.reserve(self.reserved_bytes + more_bytes)
        self.free.give(self.reserved_bytes, more_bytes)
        self.reserved_bytes += more_bytes


class Spool:
    """The scratch file of this process on one file system, and those that were frozen at forks."""

    def __init__(self, directory: Path, *, allow_memory: bool = False) -> None:
        kind = read_file_system(directory)
        if kind in ("tmpfs", "ramfs") and not allow_memory:
            raise TemporaryFileSystemError(directory, kind)
        # By the file alone from here on: the process may go elsewhere, and the directory may go.
        self.directory = directory.absolute()
        self._room: _Room | None = _Room(open_file(self.directory, "scratch"))
        self._frozen: list[_Room] = []
        self._is_closed = False

    @property
    def file(self) -> StorageFile:
        """The file that slots are taken in; opened where a fork has left this process none."""
        return self._open_room().file

    @property
    def reserved_bytes(self) -> int:
        """Bytes of disk that are set aside for this process."""
        return sum(room.reserved_bytes for room in self._rooms())

    @property
    def used_bytes(self) -> int:
        """Bytes in slots that are taken."""
        return sum(room.used_bytes for room in self._rooms())

    def take(self, length_bytes: int) -> Slot:
        """A slot of at least `length_bytes`, or `SpoolFullError`."""
        needed_bytes = round_to_blocks(length_bytes)
        room = self._open_room()
        start = room.free.take(needed_bytes)
        if start is None:
            self._grow(room, needed_bytes)
            start = room.free.take(needed_bytes)
            assert start is not None, "a spool that has just grown has room"
        return Slot(room.file, start, needed_bytes)

    def holds(self, slot: Slot) -> bool:
        """Whether a slot was taken here."""
        return any(room.file is slot.file for room in self._rooms())

    def give(self, slot: Slot) -> None:
        """Take a slot back. Nothing may be reading or writing it."""
        room = next(room for room in self._rooms() if room.file is slot.file)
        room.free.give(slot.offset_bytes, slot.length_bytes)
        if room is not self._room and room.used_bytes == 0:
            self._frozen.remove(room)
            room.file.close()

    def prepare_for_fork(self) -> None:
        """Take no more slots in a file of which the child will hold some."""
        if self._room is not None and self._room.used_bytes:
            self._frozen.append(self._room)
            self._room = None

    def start_afresh(self) -> None:
        """In a forked child: leave the file without slots, if there is one, to the parent."""
        if self._room is not None:
            self._room.file.close()
            self._room = None

    def close(self) -> None:
        """Give the disk space back."""
        self._is_closed = True
        for room in self._rooms():
            room.file.close()

    def _rooms(self) -> list[_Room]:
        return self._frozen if self._room is None else [self._room, *self._frozen]

    def _open_room(self) -> _Room:
        if self._room is None:
            if self._is_closed:
                raise ValueError(f"the spool in {self.directory} is closed")
            try:
                self._room = _Room(open_file(self.directory, "scratch"))
            except OSError as error:
                code = error.errno or 0
                detail = (
                    "A process that was forked while activations were on disk needs a file here."
                )
                raise StorageError("open", self.directory, 0, 0, code, detail) from error
        return self._room

    def _grow(self, room: _Room, needed_bytes: int) -> None:
        # Reserved up front: the disk shows now that it is full, and writes inside a reserved range
        # do not take the file's lock one after the other.
        refusal = None
        for more_bytes in (max(needed_bytes, GROWTH_BYTES), needed_bytes):
            if self._free_bytes() - RESERVE_BYTES >= more_bytes:
                try:
                    room.reserve(more_bytes)
                except StorageError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                        raise
                    refusal = os.strerror(error.errno)
                    continue
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

    def place_of(self, slot: Slot) -> int:
        """The position of the directory that a slot was taken in."""
        return next(at for at, spool in enumerate(self.spools) if spool.holds(slot))

    def give(self, slots: Sequence[Slot]) -> None:
        """Take slots back to the spools that they came from."""
        for slot in slots:
            self.spools[self.place_of(slot)].give(slot)

    def prepare_for_fork(self) -> None:
        """Take no more slots in files of which a child will hold some."""
        for spool in self.spools:
            spool.prepare_for_fork()

    def start_afresh(self) -> None:
        """In a forked child: leave the files without slots to the parent."""
        for spool in self.spools:
            spool.start_afresh()

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
