"""An engine that keeps files in memory: for tests, and for machines with memory to spare.

The first time a file is met its content is taken into memory; from then on reads and writes go
there, and nothing reaches the disk. The content is forgotten when the file is closed and gone.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref

from shorthaul.storage.engine import END_OF_FILE, IN_FLIGHT_BYTES
from shorthaul.storage.file import StorageFile
from shorthaul.storage.queue_engine import (
    Job,
    Outcome,
    QueueEngine,
    Transfer,
)


class _Content:
    """The bytes of one file, shared by everything opened on it."""

    def __init__(self, content: bytearray) -> None:
        self.bytes = content
        self.users: weakref.WeakSet[StorageFile] = weakref.WeakSet()


class MemoryEngine(QueueEngine):
    """The contract of a disk, without the disk.

    Args:
        depth: Threads that move bytes (default 4).
        in_flight_bytes: Bytes of unfinished tickets, above which submitting waits (default 512
            MiB).
        capacity_bytes: Of all files together; a write beyond it fails as on a full disk. None
            (default) for no limit.
    """

    name = "memory"
    moves_memory = False

    def __init__(
        self,
        *,
        depth: int = 4,
        in_flight_bytes: int | str = IN_FLIGHT_BYTES,
        capacity_bytes: int | None = None,
    ) -> None:
        self.capacity_bytes = capacity_bytes  # of all files together; beyond it is ENOSPC
        self._contents: dict[tuple[int, int], _Content] = {}
        self._contents_lock = threading.Lock()
        super().__init__(
            depth=depth, in_flight_bytes=in_flight_bytes, piece_bytes=4 * 2**20, piece_ranges=256
        )

    def _start_afresh(self) -> None:
        self._contents_lock = threading.Lock()
        super()._start_afresh()

    def content_of(self, file: StorageFile) -> bytearray:
        """The file as this engine has it: changing it changes what is read next."""
        with self._contents_lock:
            return self._find(file).bytes

    def _find(self, file: StorageFile) -> _Content:
        content = self._contents.get(file.identity)
        if content is None or not any(True for _ in content.users):
            # Without users it belonged to a file that is gone, whose number was given out again.
            content = _Content(bytearray(_read_whole(file)))
            self._contents[file.identity] = content
        if file not in content.users:
            content.users.add(file)
            weakref.finalize(file, self._forget, file.identity).atexit = False
        return content

    def _forget(self, identity: tuple[int, int]) -> None:
        content = self._contents.get(identity)
        if content is not None and not any(True for _ in content.users):
            self._contents.pop(identity, None)

    def _transfer(self, job: Job, transfer: Transfer) -> Outcome:
        first, last = transfer.offset_bytes, transfer.offset_bytes + transfer.length_bytes
        memory = job.memory[
            transfer.position_bytes : transfer.position_bytes + transfer.length_bytes
        ]
        with self._contents_lock:
            content = self._find(job.request.file).bytes
            if not job.request.is_write:
                part = memoryview(content)[first:last]
                memory[: len(part)] = part
                is_whole = len(part) == len(memory)
                return Outcome(len(part), None if is_whole else END_OF_FILE, buffered=1)
            if self._has_no_room(last - len(content)):
                return Outcome(0, errno.ENOSPC, buffered=1)
            if first > len(content):
                content.extend(bytes(first - len(content)))  # a hole, as in a sparse file
            content[first:last] = memory
            return Outcome(len(memory), buffered=1)

    def _has_no_room(self, growth_bytes: int) -> bool:
        if self.capacity_bytes is None or growth_bytes <= 0:
            return False
        held_bytes = sum(len(each.bytes) for each in list(self._contents.values()))
        return held_bytes + growth_bytes > self.capacity_bytes


def _read_whole(file: StorageFile) -> bytes:
    parts = []
    offset_bytes = 0
    while part := os.pread(file.buffered_descriptor, 2**20, offset_bytes):
        parts.append(part)
        offset_bytes += len(part)
    return b"".join(parts)
