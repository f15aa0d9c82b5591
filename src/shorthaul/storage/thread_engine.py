"""The engine for everywhere: a few threads that read and write at given places.

`QueueEngine` is the part that has nothing to do with disks (queues by priority, pieces, tickets,
back-pressure, closing, forking) and carries the memory, throttled and faulty engines as well.
"""

from __future__ import annotations

import ctypes
import errno
import heapq
import itertools
import os
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from shorthaul.errors import CancelledError, EngineClosedError
from shorthaul.meter import record_stall
from shorthaul.storage.engine import (
    END_OF_FILE,
    EngineStats,
    Failure,
    Priority,
    Request,
    Span,
    StorageEngine,
    Ticket,
    find_span,
)
from shorthaul.storage.file import StorageFile, choose_part
from shorthaul.units import parse_bytes

IN_FLIGHT_BYTES = 512 * 2**20
PAUSE_LIMIT_SECONDS = 5.0  # a disk that hangs must not hang a fork
# Regular files should never answer EAGAIN; the kernel may when it is short of memory.
MOST_ATTEMPTS = 1000
ATTEMPT_PAUSE_SECONDS = 0.001


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
        return self.request.length_bytes if self.request.batch is None else self.request.count

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
        self, *, depth: int, in_flight_bytes: int | str, piece_bytes: int, piece_ranges: int
    ) -> None:
        self.depth = depth
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
        self._queued_pieces = 0
        self._is_paused = False
        self._waiting: list[tuple[int, int]] = []  # (priority, arrival) of those without room
        self._arrivals = itertools.count()
        self._in_flight_bytes = self._largest_in_flight_bytes = 0
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
            self._asked[request.action] += request.count
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
            self._room.wait_for(lambda: self._may_enter(request, place))
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
        limit_bytes = self.in_flight_limit_bytes
        if request.priority is not Priority.DEMAND:
            limit_bytes -= limit_bytes // 4  # so that prefetches and writes never fill it all
        # A request that could never fit goes alone.
        return (
            self._in_flight_bytes == 0
            or self._in_flight_bytes + request.length_bytes <= limit_bytes
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
        return self.piece_bytes if job.request.batch is None else self.piece_ranges

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
            self._running += 1
        job = piece.job
        try:
            self._run_piece(piece)
        except Exception as error:
            job.error = error
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self._quiet.notify_all()
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
        for waiting in self._queues:
            if waiting:
                job = waiting[0]
                first = job.handed_out
                job.handed_out = min(job.total, first + self._step(job))
                job.running += 1
                self._queued_pieces -= 1
                if job.handed_out == job.total:
                    waiting.popleft()
                return Piece(job, first, job.handed_out)
        return None

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
        with self._lock:
            job = self._jobs.get(ticket)
            if job is None or job.handed_out:
                return False
            self._queues[job.request.priority].remove(job)
        self._finish(job, CancelledError(f"the {ticket._describe()} was cancelled"))
        return True

    def close(self) -> None:
        """End: what runs is waited for, what is queued ends with `EngineClosedError`."""
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

    def _pause(self) -> None:
        with self._lock:
            self._is_paused = True
            self._quiet.wait_for(lambda: self._running == 0, PAUSE_LIMIT_SECONDS)

    def _resume(self) -> None:
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
        ticket = self.inner._submit(replace(job.request, **part))
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


class ThreadEngine(QueueEngine):
    """`preadv` and `pwritev` in threads, direct where possible; the system call leaves Python free."""

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
            piece_ranges=32,
        )

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
