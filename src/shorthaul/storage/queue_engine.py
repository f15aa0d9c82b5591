"""What an engine of Python threads is made of, apart from the disk.

Queues by priority, pieces, tickets, back-pressure, closing and forking: the thread, memory, throttled
and faulty engines add only what one transfer does.
"""

from __future__ import annotations

import ctypes
import heapq
import itertools
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from shorthaul.errors import CancelledError, EngineClosedError
from shorthaul.interrupts import PATIENCE_SECONDS, deferred_interrupts, obey_interrupts
from shorthaul.meter import record_stall
from shorthaul.storage.engine import (
    PAUSE_LIMIT_SECONDS,
    EngineStats,
    Failure,
    Priority,
    Request,
    Span,
    StorageEngine,
    Ticket,
    find_span,
)
from shorthaul.units import parse_bytes


@dataclass(eq=False)
class Job:
    """A request in a queue engine, and how far it has come."""

    ticket: Ticket
    request: Request
    number: int  # of its first range, counting every range ever asked of this engine from 1
    action_number: int  # the same, counting reads or writes only
    memory: memoryview
    handed_out: int = 0  # bytes of a single range, or ranges of a batch
    running: int = 0
    moved_bytes: int = 0
    failures: dict[int, Failure] = field(default_factory=dict)  # by range
    error: Exception | None = None

    @property
    def total(self) -> int:
        """What `handed_out` grows to."""
        return self.request.length_bytes if self.request.batch is None else self.request.range_count

    def add_failure(self, transfer: Transfer, moved_bytes: int, code: int) -> None:
        """Keep one failure for each range: the one nearest its beginning."""
        index, offset_bytes, _, length_bytes = transfer
        if self.request.batch is None:
            moved_bytes += offset_bytes - self.request.offset_bytes
            offset_bytes, length_bytes = self.request.offset_bytes, self.request.length_bytes
        failure = Failure(index, offset_bytes, length_bytes, moved_bytes, code)
        self.failures[index] = min(failure, self.failures.get(index, failure))


class Piece(NamedTuple):
    """What one thread does at a time: bytes of a single range, or ranges of a batch."""

    job: Job
    first: int
    last: int

    @property
    def length_bytes(self) -> int:
        """How much it moves."""
        batch = self.job.request.batch
        if batch is None:
            return self.last - self.first
        return int(batch.lengths_bytes[self.first : self.last].sum())


class Transfer(NamedTuple):
    """One range, or part of one: where in the file, where in the memory, how long."""

    range_index: int
    offset_bytes: int
    position_bytes: int
    length_bytes: int


class Outcome(NamedTuple):
    """What a transfer came to."""

    moved_bytes: int
    code: int | None = None  # an errno, or END_OF_FILE, where it failed
    direct: int = 0
    buffered: int = 0


class QueueEngine(StorageEngine):
    """Queues, pieces and threads; a subclass says in `_transfer` what one transfer does."""

    def __init__(
        self,
        *,
        depth: int,
        in_flight_bytes: int | str,
        piece_bytes: int,
        piece_ranges: int,
        window_bytes: int = 2**62,
    ) -> None:
        self.depth = depth
        self.window_bytes = window_bytes  # of prefetches and writes that run at once
        self.in_flight_limit_bytes = parse_bytes(in_flight_bytes)
        self.piece_bytes = piece_bytes
        self.piece_ranges = piece_ranges
        if depth < 1 or self.in_flight_limit_bytes < 1:
            raise ValueError(
                "depth and in_flight_bytes must be positive, got "
                f"{depth} and {self.in_flight_limit_bytes}"
            )
        self._jobs: dict[Ticket, Job] = {}
        self._is_closing = False
        self._start_afresh()
        super().__init__()

    def _start_afresh(self) -> None:
        for job in self._jobs.values():  # the parent's
            job.request.file.drop()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._quiet = threading.Condition(self._lock)
        self._queues: tuple[deque[Job], ...] = tuple(deque() for _ in Priority)
        self._jobs = {}
        self._threads: list[threading.Thread] = []
        self._running = 0
        self._low_running = self._low_running_bytes = 0  # prefetches and writes
        self._queued_pieces = 0
        self._is_paused = False
        self._waiting: list[tuple[int, int]] = []  # (priority, arrival) of those without room
        self._arrivals = itertools.count()
        self._in_flight_bytes = self._demand_in_flight_bytes = self._largest_in_flight_bytes = 0
        self._asked = {"read": 0, "write": 0}
        self._read_bytes = self._written_bytes = self._failed = 0
        self._direct = self._buffered = 0

    # Submitting

    def _submit(self, request: Request) -> Ticket:
        ticket = Ticket(self, request)
        with self._lock:
            try:
                self._await_room(request)
            except BaseException:
                request.file.drop()
                raise
            self._in_flight_bytes += request.length_bytes
            if request.priority is Priority.DEMAND:
                self._demand_in_flight_bytes += request.length_bytes
            self._largest_in_flight_bytes = max(
                self._largest_in_flight_bytes, self._in_flight_bytes
            )
            job = Job(
                ticket,
                request,
                sum(self._asked.values()) + 1,
                self._asked[request.action] + 1,
                view_memory(request.span),
            )
            self._asked[request.action] += request.range_count
            self._jobs[ticket] = job
            if job.total:
                self._queues[request.priority].append(job)
                self._wake_threads(job)
                return ticket
        self._finish(job)
        return ticket

    def _await_room(self, request: Request) -> None:
        """Wait until the request fits, behind those of the same urgency that came before."""
        place = (int(request.priority), next(self._arrivals))
        if self._may_enter(request, place):
            return
        started = time.perf_counter()
        heapq.heappush(self._waiting, place)
        try:
            while not self._may_enter(request, place):
                self._room.wait(PATIENCE_SECONDS)
                obey_interrupts()
        finally:
            self._waiting.remove(place)
            heapq.heapify(self._waiting)
            self._room.notify_all()
            record_stall(time.perf_counter() - started, request.why)

    def _may_enter(self, request: Request, place: tuple[int, int]) -> bool:
        if self._is_closing:
            raise EngineClosedError(f"the {self.name} engine is closed; open another")
        if self._waiting and self._waiting[0] < place:
            return False
        return has_room(
            request.length_bytes,
            is_demand=request.priority is Priority.DEMAND,
            limit_bytes=self.in_flight_limit_bytes,
            in_flight_bytes=self._in_flight_bytes,
            demand_bytes=self._demand_in_flight_bytes,
        )

    def _wake_threads(self, job: Job) -> None:
        pieces = -(-job.total // self._step(job))
        self._queued_pieces += pieces
        self._work.notify(pieces)
        for number in range(
            len(self._threads), min(self.depth, self._running + self._queued_pieces)
        ):
            name = f"shorthaul-{self.name}-{number}"
            self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
            self._threads[-1].start()

    def _step(self, job: Job) -> int:
        if job.request.batch is None:
            return self.piece_bytes
        return max(1, min(self.piece_ranges, job.total // self.depth))  # work forevery thread

    # Running

    def _run(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Do one piece; false at the end. Nothing of it is held while the next is awaited."""
        with self._lock:
            piece = self._await_piece()
            if piece is None:
                return False
        job = piece.job
        try:
            self._run_piece(piece)
        except Exception as error:
            job.error = error
        with self._lock:
            self._count_running(piece, -1)
            if self._running == 0:
                self._quiet.notify_all()
            if self._queued_pieces and job.request.priority is not Priority.DEMAND:
                self._work.notify()  # the window has room for more than this thread will take
            job.running -= 1
            is_over = job.running == 0 and (job.handed_out == job.total or self._is_closing)
        if is_over:
            self._finish(job)
        return True

    def _await_piece(self) -> Piece | None:
        while not self._is_closing:  # closing has emptied the queues
            seconds = 0.0
            if not self._is_paused:
                seconds = self._seconds_until_free()
                piece = self._take_piece() if not seconds else None
                if piece is not None:
                    return piece
            self._work.wait(seconds or None)
        return None

    def _seconds_until_free(self) -> float:
        """How long to start nothing; for engines that imitate slow disks."""
        return 0.0

    def _take_piece(self) -> Piece | None:
        for priority, waiting in enumerate(self._queues):
            if not waiting:
                continue
            if priority != Priority.DEMAND and not self._can_run_low():
                return None
            job = waiting[0]
            first = job.handed_out
            job.handed_out = min(job.total, first + self._step(job))
            job.running += 1
            self._queued_pieces -= 1
            if job.handed_out == job.total:
                waiting.popleft()
            piece = Piece(job, first, job.handed_out)
            self._count_running(piece, 1)
            return piece
        return None

    def _can_run_low(self) -> bool:
        """Whether one more prefetch or write may run: some threads stay free for the urgent."""
        most = max(1, self.depth - self.depth // 4)
        return self._low_running < most and self._low_running_bytes < self.window_bytes

    def _count_running(self, piece: Piece, change: int) -> None:
        self._running += change
        if piece.job.request.priority is not Priority.DEMAND:
            self._low_running += change
            self._low_running_bytes += change * piece.length_bytes

    def _run_piece(self, piece: Piece) -> None:
        """Do the transfers of one piece, and note what was moved and what failed."""
        job = piece.job
        if job.request.batch is None and job.failures:
            return  # an earlier piece of the same range failed: the rest cannot save it
        outcomes = [
            (transfer, self._transfer(job, transfer))
            for transfer in transfers_of(piece)
            if transfer.length_bytes
        ]
        with self._lock:
            for transfer, outcome in outcomes:
                job.moved_bytes += outcome.moved_bytes
                self._direct += outcome.direct
                self._buffered += outcome.buffered
                if outcome.code is not None:
                    job.add_failure(transfer, outcome.moved_bytes, outcome.code)

    @abstractmethod
    def _transfer(self, job: Job, transfer: Transfer) -> Outcome:
        """Move the bytes between `job.memory` and the file."""

    # Ending

    def _finish(self, job: Job, error: Exception | None = None) -> None:
        with self._lock:
            del self._jobs[job.ticket]
            self._in_flight_bytes -= job.request.length_bytes
            if job.request.priority is Priority.DEMAND:
                self._demand_in_flight_bytes -= job.request.length_bytes
            if job.request.is_write:
                self._written_bytes += job.moved_bytes
            else:
                self._read_bytes += job.moved_bytes
            self._failed += len(job.failures)
            self._room.notify_all()
            if job.handed_out < job.total:
                error = error or self._closed_error()
        job.ticket._finish(job.moved_bytes, list(job.failures.values()), job.error or error)

    def cancel(self, ticket: Ticket) -> bool:
        """Withdraw a request of which nothing has started."""
        with deferred_interrupts:
            with self._lock:
                job = self._jobs.get(ticket)
                if job is None or job.handed_out:
                    return False
                self._queues[job.request.priority].remove(job)
            self._finish(job, CancelledError(f"the {ticket._describe()} was cancelled"))
            return True

    def close(self) -> None:
        """End: what runs is waited for, what is queued ends with `EngineClosedError`."""
        with deferred_interrupts:
            self._close()

    def _close(self) -> None:
        with self._lock:
            self._is_closing = True
            queued = [job for waiting in self._queues for job in waiting if job.running == 0]
            for waiting in self._queues:
                waiting.clear()
            self._work.notify_all()
            self._room.notify_all()
            threads = list(self._threads)
        for job in queued:
            self._finish(job)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _closed_error(self) -> EngineClosedError:
        return EngineClosedError(f"the {self.name} engine was closed before this request was done")

    def pause(self) -> None:
        """Start nothing more, and wait for what runs, though not forever."""
        with self._lock:
            self._is_paused = True
            self._quiet.wait_for(lambda: self._running == 0, PAUSE_LIMIT_SECONDS)

    def resume(self) -> None:
        """Go on."""
        with self._lock:
            self._is_paused = False
            self._work.notify_all()

    def stats(self) -> EngineStats:
        """What was done so far, and what is in flight now."""
        with self._lock:
            return EngineStats(
                sum(self._asked.values()),
                self._read_bytes,
                self._written_bytes,
                self._direct,
                self._buffered,
                self._failed,
                self._in_flight_bytes,
                self._largest_in_flight_bytes,
            )


def has_room(
    length_bytes: int, *, is_demand: bool, limit_bytes: int, in_flight_bytes: int, demand_bytes: int
) -> bool:
    """Whether a request may enter while `in_flight_bytes`, of them `demand_bytes`, are in flight.

    | demand                | fits, or is the only demand, or demands stay within a quarter |
    | prefetch, write       | fits, and these stay within three quarters                    |
    | longer than its share | is the only one of its kind                                   |

    So a demand is never kept out by prefetches and writes, however long.
    """
    reserve_bytes = limit_bytes // 4
    fits = in_flight_bytes + length_bytes <= limit_bytes
    if is_demand:
        return fits or demand_bytes == 0 or demand_bytes + length_bytes <= reserve_bytes
    low_bytes = in_flight_bytes - demand_bytes
    low_limit_bytes = limit_bytes - reserve_bytes
    if length_bytes > low_limit_bytes:
        return low_bytes == 0
    return fits and low_bytes + length_bytes <= low_limit_bytes


def transfers_of(piece: Piece) -> Iterator[Transfer]:
    """The transfers that a piece consists of."""
    request = piece.job.request
    if request.batch is None:
        yield Transfer(0, request.offset_bytes + piece.first, piece.first, piece.last - piece.first)
        return
    columns = (each[piece.first : piece.last].tolist() for each in request.batch)
    for index, (offset, length, position) in enumerate(zip(*columns, strict=True), piece.first):
        yield Transfer(index, offset, position, length)


class OuterEngine(QueueEngine):
    """An engine around another, which does the transfers and tells the meter; closed together."""

    reports_moves = False
    moves_memory = False

    def __init__(
        self,
        inner: StorageEngine,
        *,
        depth: int,
        in_flight_bytes: int | str,
        piece_bytes: int,
        piece_ranges: int,
    ) -> None:
        self.inner = inner
        super().__init__(
            depth=depth,
            in_flight_bytes=in_flight_bytes,
            piece_bytes=piece_bytes,
            piece_ranges=piece_ranges,
        )

    def _transfer(self, job: Job, transfer: Transfer) -> Outcome:
        first = transfer.position_bytes
        return self._forward(job, transfer, job.memory[first : first + transfer.length_bytes])

    def _forward(self, job: Job, transfer: Transfer, memory: memoryview) -> Outcome:
        span = find_span(memory, is_written=not job.request.is_write)
        ticket = self._ask(
            job, span=span, offset_bytes=transfer.offset_bytes, length_bytes=span.length_bytes
        )
        if ticket.failures:
            return Outcome(ticket.failures[0].moved_bytes, ticket.failures[0].code)
        return Outcome(transfer.length_bytes)

    def _ask(self, job: Job, *, length_bytes: int, **changes: Any) -> Ticket:
        """Have the inner engine do part of a request, and wait; failures are in the ticket."""
        job.request.file.hold(is_held=True)
        part = {"batch": None, "length_bytes": length_bytes} | changes
        ticket = self.inner._submit(job.request._replace(**part))
        self.inner._wait_for(ticket, None)
        if not ticket.failures:
            ticket.wait()  # raises where it was cut short: the inner engine was closed
        return ticket

    def close(self) -> None:
        """Close this engine, then the one inside."""
        super().close()
        self.inner.close()

    def stats(self) -> EngineStats:
        """What was asked of this engine, and how the one inside did it."""
        inner = self.inner.stats()
        return replace(
            super().stats(),
            direct_transfers=inner.direct_transfers,
            buffered_transfers=inner.buffered_transfers,
        )


_view_memory = ctypes.pythonapi.PyMemoryView_FromMemory
_view_memory.restype = ctypes.py_object
_view_memory.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_PYBUF_WRITE = 0x200


def view_memory(span: Span) -> memoryview:
    """The bytes of a span, which must outlive the view."""
    if span.length_bytes == 0:
        return memoryview(b"")
    view: memoryview = _view_memory(span.address, span.length_bytes, _PYBUF_WRITE)
    return view
