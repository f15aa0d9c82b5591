"""The engine for everywhere: threads that read and write at given places, direct where possible."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import time

from shorthaul.errors import ShorthaulError
from shorthaul.fallbacks import note_fallback
from shorthaul.storage.engine import END_OF_FILE, IN_FLIGHT_BYTES, Failure
from shorthaul.storage.file import StorageFile, choose_part
from shorthaul.storage.queue_engine import Job, Outcome, Piece, QueueEngine, Transfer
from shorthaul.storage.uring_engine import RingLibrary, load_library

# Regular files should never answer EAGAIN; the kernel may when it is short of memory.
MOST_ATTEMPTS = 1000
ATTEMPT_PAUSE_SECONDS = 0.001


class ThreadEngine(QueueEngine):
    """`preadv` and `pwritev` in threads, direct where possible; the system call leaves Python free.

    Args:
        depth: Threads, and so requests at the disk at once (default 32).
        in_flight_bytes: Bytes of unfinished tickets, above which submitting waits (default 512
            MiB).
        piece_bytes: What one request asks of the disk at most (default 4 MiB).
    """

    name = "thread"

    def __init__(
        self,
        *,
        depth: int = 32,
        in_flight_bytes: int | str = IN_FLIGHT_BYTES,
        piece_bytes: int = 4 * 2**20,
    ) -> None:
        super().__init__(
            depth=depth,
            in_flight_bytes=in_flight_bytes,
            piece_bytes=piece_bytes,
            piece_ranges=128,
            window_bytes=16 * 2**20,
        )

    @functools.cached_property
    def _library(self) -> RingLibrary | None:
        """What moves the ranges of a batch without Python in between, where it can be compiled."""
        try:
            return load_library()
        except ShorthaulError as error:
            reason = str(error).splitlines()[0].rstrip(".")
            note_fallback("batches of the thread engine", "Python, at a third of the rate", reason)
            return None

    def _run_piece(self, piece: Piece) -> None:
        if piece.job.request.batch is None or self._library is None:
            super()._run_piece(piece)
        else:
            self._move_ranges(self._library, piece)

    def _move_ranges(self, library: RingLibrary, piece: Piece) -> None:
        job, first, last = piece
        file, is_write = job.request.file, job.request.is_write
        facts = (ctypes.c_int64 * 4)()
        failures = (ctypes.c_int64 * (5 * (last - first)))()
        count = library.move_ranges(
            is_write,
            file.direct_descriptor if file.is_direct else -1,
            file.buffered_descriptor,
            file.write_alignment_bytes if is_write else file.alignment_bytes,
            file.memory_alignment_bytes,
            job.request.span.address,
            *(each.ctypes.data for each in job.request.batch or ()),
            first,
            last,
            ctypes.addressof(facts),
            ctypes.addressof(failures),
        )
        moved_bytes, direct, buffered, refused = facts
        if refused:
            file.give_up_direct()
        with self._lock:
            job.moved_bytes += moved_bytes
            self._direct += direct
            self._buffered += buffered
            for at in range(0, 5 * count, 5):
                failure = Failure(*failures[at : at + 5])
                job.failures[failure.range_index] = failure

    def _transfer(self, job: Job, transfer: Transfer) -> Outcome:
        file, is_write = job.request.file, job.request.is_write
        address = job.request.span.address + transfer.position_bytes
        memory = job.memory[
            transfer.position_bytes : transfer.position_bytes + transfer.length_bytes
        ]
        moved_bytes = attempts = direct = buffered = 0
        was_refused = False
        while moved_bytes < transfer.length_bytes:
            offset_bytes = transfer.offset_bytes + moved_bytes
            left_bytes = transfer.length_bytes - moved_bytes
            is_direct, length_bytes = choose_part(
                file, offset_bytes, left_bytes, address + moved_bytes, is_write=is_write
            )
            is_direct = is_direct and not was_refused
            direct, buffered = direct + is_direct, buffered + (not is_direct)
            part = memory[moved_bytes : moved_bytes + length_bytes]
            try:
                count = self._call(file, part, offset_bytes, is_direct, is_write)
            except OSError as error:
                if error.errno == errno.EINVAL and is_direct:
                    was_refused = True
                elif error.errno == errno.EAGAIN and attempts < MOST_ATTEMPTS:
                    attempts += 1
                    time.sleep(ATTEMPT_PAUSE_SECONDS)
                else:
                    return Outcome(moved_bytes, error.errno, direct, buffered)
                continue
            if count == 0:
                code = errno.EIO if is_write else END_OF_FILE
                return Outcome(moved_bytes, code, direct, buffered)
            moved_bytes += count
            if was_refused:
                file.give_up_direct()
        return Outcome(moved_bytes, None, direct, buffered)

    def _call(
        self,
        file: StorageFile,
        part: memoryview,
        offset_bytes: int,
        is_direct: bool,
        is_write: bool,
    ) -> int:
        """One system call; Python itself calls again after EINTR."""
        descriptor = file.direct_descriptor if is_direct else file.buffered_descriptor
        if is_write:
            return os.pwritev(descriptor, [part], offset_bytes)
        return os.preadv(descriptor, [part], offset_bytes)
