"""Bytes to the disk and back beside something else, with nothing done for them but the transfers.

What a step takes longer beside them is the least that offloading as many bytes can cost on a machine:
the disk's share of the processors and of the memory. No hooks, no copies, no checksums, one buffer.
"""

from __future__ import annotations

import os
import threading

from shorthaul.settings import settings
from shorthaul.storage import BufferPool, open_file

PIECE_BYTES = 4 * 2**20


class RawTraffic:
    """A context in which `length_bytes` are written, and then read, by a thread of its own."""

    def __init__(self, length_bytes: int) -> None:
        pieces = -(-length_bytes // PIECE_BYTES)
        self.length_bytes = pieces * PIECE_BYTES
        self.moved_bytes = 0
        self._file = open_file(settings.scratch_directory, "scratch")
        self._file.reserve(self.length_bytes)
        self._pool = BufferPool(2 * PIECE_BYTES, why="raw traffic")
        self._memory = self._pool.take(PIECE_BYTES).memory
        self._thread: threading.Thread | None = None

    def __enter__(self) -> RawTraffic:
        self._thread = threading.Thread(target=self._move)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        self._thread.join()

    def _move(self) -> None:
        file = self._file
        descriptor = file.direct_descriptor if file.is_direct else file.buffered_descriptor
        for move in (os.pwritev, os.preadv):
            for offset in range(0, self.length_bytes, PIECE_BYTES):
                self.moved_bytes += move(descriptor, [self._memory], offset)

    def close(self) -> None:
        """Give file and memory back."""
        self._file.close()
        self._pool.close()
