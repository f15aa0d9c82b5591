"""A disk of a given bandwidth: what training would be like on another machine.

>>> from shorthaul.storage.memory_engine import MemoryEngine
>>> slow = throttled_engine(MemoryEngine(), bytes_per_second=300e6, latency_seconds=100e-6)
>>> slow
<throttled engine: 300 MB/s, 100.0 us, over memory>
>>> slow.close()
"""

from __future__ import annotations

import time

from shorthaul.storage.engine import IN_FLIGHT_BYTES, Batch, StorageEngine
from shorthaul.storage.queue_engine import Job, OuterEngine, Piece
from shorthaul.units import format_seconds

# Short sleeps are inexact, so the disk may be busy this far ahead before nothing more is started.
_AHEAD_SECONDS = 0.002


class ThrottledEngine(OuterEngine):
    """Requests pass one after another at the given rate; their latencies overlap.

    Args:
        inner: The engine that does the work.
        bytes_per_second: The disk's rate.
        latency_seconds: What each request takes beyond its bytes (default 0).
        depth: Requests that may be at `inner` at once (default 32).
        in_flight_bytes: Bytes of unfinished tickets, above which submitting waits (default 512
            MiB).
    """

    name = "throttled"

    def __init__(
        self,
        inner: StorageEngine,
        bytes_per_second: float,
        latency_seconds: float = 0.0,
        *,
        depth: int = 32,
        in_flight_bytes: int | str = IN_FLIGHT_BYTES,
    ) -> None:
        if not bytes_per_second > 0 or latency_seconds < 0:
            raise ValueError(
                "bytes_per_second must be positive and latency_seconds not negative, got "
                f"{bytes_per_second} and {latency_seconds}"
            )
        self.bytes_per_second = bytes_per_second
        self.latency_seconds = latency_seconds
        self._free_at = 0.0
        self._done_at: dict[tuple[Job, int], float] = {}
        # Small pieces: an urgent request waits for one of them at most.
        super().__init__(
            inner,
            depth=depth,
            in_flight_bytes=in_flight_bytes,
            piece_bytes=2**20,
            piece_ranges=64,
        )

    def _seconds_until_free(self) -> float:
        return max(0.0, self._free_at - time.monotonic() - _AHEAD_SECONDS)

    def _take_piece(self) -> Piece | None:
        piece = super()._take_piece()
        if piece is not None:
            begin = max(time.monotonic(), self._free_at)
            self._free_at = begin + piece.length_bytes / self.bytes_per_second
            self._done_at[piece.job, piece.first] = self._free_at + self.latency_seconds
        return piece

    def _run_piece(self, piece: Piece) -> None:
        if piece.job.request.batch is None:
            super()._run_piece(piece)
        else:
            self._run_ranges(piece)
        done_at = self._done_at.pop((piece.job, piece.first))
        time.sleep(max(0.0, done_at - time.monotonic()))

    def _run_ranges(self, piece: Piece) -> None:
        """Hand the ranges on together: one by one, Python would be the slow disk."""
        job, first, last = piece
        assert job.request.batch is not None
        batch = Batch(*(each[first:last] for each in job.request.batch))
        ticket = self._ask(job, length_bytes=int(batch.lengths_bytes.sum()), batch=batch)
        with self._lock:
            job.moved_bytes += ticket.moved_bytes
            for failure in ticket.failures:
                index = failure.range_index + first
                job.failures[index] = failure._replace(range_index=index)

    def __repr__(self) -> str:
        rate, latency = self.bytes_per_second / 1e6, format_seconds(self.latency_seconds)
        return f"<throttled engine: {rate:g} MB/s, {latency}, over {self.inner.name}>"


def throttled_engine(
    inner: StorageEngine, bytes_per_second: float, latency_seconds: float = 0.0
) -> ThrottledEngine:
    """`inner`, no faster than a disk of that bandwidth and latency. Closing it closes `inner`.

    Args:
        inner: The engine that does the work.
        bytes_per_second: The disk's rate.
        latency_seconds: What each request takes beyond its bytes (default 0).
    """
    return ThrottledEngine(inner, bytes_per_second, latency_seconds)
