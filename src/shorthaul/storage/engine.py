"""What every storage engine promises: requests go in, tickets come out, errors wait in the ticket.

>>> import numpy as np, tempfile
>>> from shorthaul.storage.file import open_file
>>> from shorthaul.storage import open_engine
>>> with open_engine() as engine, open_file(tempfile.gettempdir(), "scratch") as file:
...     engine.write(file, 0, np.arange(1000)).wait()
...     back = np.empty(1000, int)
...     engine.read(file, 0, back).result()
8000
>>> bool((back == np.arange(1000)).all())
True
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from shorthaul.closing import Closing
from shorthaul.errors import (
    ForkedTicketError,
    ShortReadError,
    StorageError,
    WaitTimeoutError,
)
from shorthaul.interrupts import PATIENCE_SECONDS, deferred_interrupts, obey_interrupts
from shorthaul.meter import record_move, record_stall
from shorthaul.storage.buffer_pool import Buffer
from shorthaul.storage.coalesce import Int64Array
from shorthaul.storage.file import StorageFile

_log = logging.getLogger("shorthaul")

Action = Literal["read", "write"]

IN_FLIGHT_BYTES = 512 * 2**20
PAUSE_LIMIT_SECONDS = 5.0  # a disk that hangs must not hang a fork
END_OF_FILE = 0  # in place of an errno: the file ended before the range did


class Priority(IntEnum):
    """What goes first: a request of a lower number is never kept waiting in a queue by a higher."""

    DEMAND = 0
    PREFETCH = 1
    WRITE = 2


@dataclass(frozen=True)
class EngineStats:
    """What an engine has done since it was opened, and what it is doing now."""

    requests: int  # asked for, each range of a batch counted
    read_bytes: int  # that arrived
    written_bytes: int  # that arrived
    direct_transfers: int  # pieces that bypassed the page cache
    buffered_transfers: int  # pieces that did not: unaligned, small, or no O_DIRECT here
    failed_requests: int  # ranges that did not get all their bytes
    in_flight_bytes: int  # of tickets that are not done
    largest_in_flight_bytes: int  # at any time


class Failure(NamedTuple):
    """One range that did not get all its bytes."""

    range_index: int  # in its batch
    offset_bytes: int  # in the file
    length_bytes: int  # that were asked for
    moved_bytes: int  # from its beginning
    code: int  # an errno, or END_OF_FILE


class Span(NamedTuple):
    """Memory to read into or write from, and the object that keeps it."""

    address: int
    length_bytes: int
    keeper: object


class Batch(NamedTuple):
    """Many ranges of one file, and where each lies in the memory."""

    offsets_bytes: Int64Array
    lengths_bytes: Int64Array
    positions_bytes: Int64Array


class Request(NamedTuple):
    """What was asked of an engine, checked and with its memory found."""

    action: Action
    file: StorageFile
    span: Span
    offset_bytes: int
    length_bytes: int  # of all ranges together
    priority: Priority
    why: str
    batch: Batch | None = None

    @property
    def is_write(self) -> bool:
        """Whether bytes go to the file."""
        return self.action == "write"

    @property
    def range_count(self) -> int:
        """How many ranges."""
        return 1 if self.batch is None else len(self.batch.offsets_bytes)


class Ticket:
    """One request, or one batch, on its way; it keeps file and memory alive until it is done.

    Made by the methods of a `StorageEngine`.
    """

    def __init__(self, engine: StorageEngine, request: Request) -> None:
        self.action: Action = request.action
        self.path = request.file.path
        self.why = request.why
        self.priority = request.priority
        self.length_bytes = request.length_bytes
        self.failures: tuple[Failure, ...] = ()
        self._engine = engine
        self._request: Request | None = request
        self._count = request.range_count
        self.moved_bytes = 0  # when it is done
        self._error: Exception | None = None
        self._is_finished = False
        self._finished: threading.Event | None = None  # made by the first who sleeps until then
        self._callbacks: list[Callable[[Ticket], None]] | None = []
        self._generation = _generation

    @property
    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        if self._is_finished:
            return True
        self._require_same_process()
        return self._engine._is_done(self)

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Return when every byte is where it should be, or raise what went wrong.

        `StorageError` names file, range and errno; `ShortReadError` when the file ended early;
        `WaitTimeoutError` when it is not done in time, in which case waiting again is fine.
        """
        if not self._is_finished:
            self._require_same_process()
            started = time.perf_counter()
            with deferred_interrupts:
                is_done = self._engine._wait_for(self, timeout_seconds)
            record_stall(time.perf_counter() - started, self.why)
            if not is_done:
                raise WaitTimeoutError(f"the {self._describe()}", timeout_seconds or 0.0)
        if self._error is not None:
            raise self._error

    def result(self) -> int:
        """Wait, and return how many bytes were moved."""
        self.wait()
        return self.moved_bytes

    def add_done_callback(self, callback: Callable[[Ticket], None]) -> None:
        """Call `callback(ticket)` when it is done, at once if it is, from whichever thread knows.

        Also after failure. What the callback raises is logged and goes no further.
        """
        with _callback_lock:
            if self._callbacks is not None:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def _finish(
        self, moved_bytes: int, failures: Sequence[Failure], error: Exception | None = None
    ) -> None:
        """Called once, by the engine."""
        request, self._request = self._request, None
        if request is None:
            raise RuntimeError(f"the {self._describe()} was finished twice")
        self.moved_bytes = moved_bytes
        self.failures = tuple(failures)
        self._error = error
        if error is None and failures:
            self._error = build_error(self.action, request.file, self.failures, self._count)
        if moved_bytes and self._engine.reports_moves:
            places = ("memory", "disk") if request.is_write else ("disk", "memory")
            record_move(*places, moved_bytes, self.why, self._count)
        request.file.drop()
        with _callback_lock:
            self._is_finished = True
            finished = self._finished
            callbacks, self._callbacks = self._callbacks or [], None
        if finished is not None:
            finished.set()
        for callback in callbacks:
            self._call(callback)

    def _await_finish(self, timeout_seconds: float | None) -> bool:
        """Sleep until `_finish` was called; false when the time was up before."""
        with _callback_lock:
            if self._is_finished:
                return True
            if self._finished is None:
                self._finished = threading.Event()
        stop = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            left = PATIENCE_SECONDS if stop is None else max(0.0, stop - time.monotonic())
            if self._finished.wait(min(left, PATIENCE_SECONDS)):
                return True
            if left == 0.0:
                return False
            obey_interrupts()

    def _call(self, callback: Callable[[Ticket], None]) -> None:
        try:
            callback(self)
        except Exception:
            _log.exception("a callback of the %s failed", self._describe())

    def _require_same_process(self) -> None:
        if self._generation != _generation:
            raise ForkedTicketError(
                f"the {self._describe()} was asked for before this process was forked; its result "
                "is known to the parent only. Ask again here."
            )

    def _describe(self) -> str:
        many = f"{self._count:,} ranges, " if self._count != 1 else ""
        return f"{self.action} of {self.path} ({many}{self.length_bytes:,} bytes)"

    def __repr__(self) -> str:
        state = "failed" if self._error else "done" if self._is_finished else "under way"
        return f"Ticket({self._describe()}, {state})"


class StorageEngine(Closing):
    """Moves ranges between files and memory, in the background, the most urgent first."""

    name = "storage"
    reports_moves = True  # false where an engine inside this one does
    moves_memory = True  # whether transfers under way touch memory that a fork would share
    # Set by an owner who asks every ticket of a single range whether it is done, or waits for it. Then
    # nothing wakes a thread when it is: it is finished, and its callbacks are called, when asked.
    is_polled = False

    def __init__(self) -> None:
        _engines.add(self)

    def read(
        self,
        file: StorageFile,
        offset_bytes: int,
        target: Any,
        *,
        priority: Priority = Priority.DEMAND,
        why: str = "read",
    ) -> Ticket:
        """Fill `target` (a `Buffer`, CPU tensor or writable array) from `offset_bytes` on.

        Args:
            file: From `open_file`.
            offset_bytes: Where in the file.
            target: A `Buffer`, a CPU tensor or a writable array; all of it is filled.
            priority: What goes before it (default `Priority.DEMAND`: nothing).
            why: What the meter calls these bytes (default `"read"`).
        """
        span = find_span(target, is_written=True)
        return self._enter("read", file, span, offset_bytes, priority, why)

    def write(
        self,
        file: StorageFile,
        offset_bytes: int,
        source: Any,
        *,
        priority: Priority = Priority.WRITE,
        why: str = "write",
    ) -> Ticket:
        """Write all of `source` at `offset_bytes`; do not change it before the ticket is done.

        Args:
            file: From `open_file`.
            offset_bytes: Where in the file.
            source: A `Buffer`, a CPU tensor or an array.
            priority: What goes before it (default `Priority.WRITE`: all reads).
            why: What the meter calls these bytes (default `"write"`).
        """
        _require_writable(file)
        span = find_span(source, is_written=False)
        return self._enter("write", file, span, offset_bytes, priority, why)

    def read_many(
        self,
        file: StorageFile,
        offsets_bytes: npt.ArrayLike,
        lengths_bytes: npt.ArrayLike,
        target: Any,
        target_offsets_bytes: npt.ArrayLike,
        *,
        priority: Priority = Priority.DEMAND,
        why: str = "read",
    ) -> Ticket:
        """Read many ranges into one target, under one ticket; one length may stand for all.

        Args:
            file: From `open_file`.
            offsets_bytes: Where each range begins in the file.
            lengths_bytes: How long each is, or one length for all.
            target: A `Buffer`, a CPU tensor or a writable array.
            target_offsets_bytes: Where each range goes in it.
            priority: What goes before them (default `Priority.DEMAND`: nothing).
            why: What the meter calls these bytes (default `"read"`).
        """
        span = find_span(target, is_written=True)
        return self._enter_batch(
            "read", file, span, (offsets_bytes, lengths_bytes, target_offsets_bytes), priority, why
        )

    def write_many(
        self,
        file: StorageFile,
        offsets_bytes: npt.ArrayLike,
        lengths_bytes: npt.ArrayLike,
        source: Any,
        source_offsets_bytes: npt.ArrayLike,
        *,
        priority: Priority = Priority.WRITE,
        why: str = "write",
    ) -> Ticket:
        """Write many ranges of one source, under one ticket; ranges of the file must not overlap.

        Args:
            file: From `open_file`.
            offsets_bytes: Where each range begins in the file.
            lengths_bytes: How long each is, or one length for all.
            source: A `Buffer`, a CPU tensor or an array.
            source_offsets_bytes: Where each range comes from in it.
            priority: What goes before them (default `Priority.WRITE`: all reads).
            why: What the meter calls these bytes (default `"write"`).
        """
        _require_writable(file)
        span = find_span(source, is_written=False)
        return self._enter_batch(
            "write", file, span, (offsets_bytes, lengths_bytes, source_offsets_bytes), priority, why
        )

    def _enter_batch(
        self,
        action: Action,
        file: StorageFile,
        span: Span,
        columns: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike],
        priority: Priority,
        why: str,
    ) -> Ticket:
        batch = _check_batch(*columns, span)
        total_bytes = int(batch.lengths_bytes.sum())
        request = Request(action, file, span, 0, total_bytes, Priority(priority), why, batch)
        with deferred_interrupts:
            file.hold()
            return self._submit(request)

    def _enter(
        self,
        action: Action,
        file: StorageFile,
        span: Span,
        offset_bytes: int,
        priority: Priority,
        why: str,
    ) -> Ticket:
        if offset_bytes < 0:
            raise ValueError(f"offset_bytes must not be negative, got {offset_bytes}")
        length_bytes = span.length_bytes
        request = Request(action, file, span, offset_bytes, length_bytes, Priority(priority), why)
        with deferred_interrupts:
            file.hold()
            return self._submit(request)

    @abstractmethod
    def _submit(self, request: Request) -> Ticket:
        """Take a request in, waiting while too many bytes are in flight. Owns `file.hold`.

        Called with interrupts deferred; it obeys them while it waits, with nothing taken in.
        """

    @abstractmethod
    def cancel(self, ticket: Ticket) -> bool:
        """Withdraw a request of which nothing has started; waiting for it then raises.

        False when it has started or is done: then it ends as it would have.
        """

    @abstractmethod
    def close(self) -> None:
        """End: what runs is waited for, what is queued ends with `EngineClosedError`."""

    @abstractmethod
    def stats(self) -> EngineStats:
        """What was done so far, and what is in flight now."""

    @abstractmethod
    def _start_afresh(self) -> None:
        """In a forked child: forget threads, queues and tickets, which are the parent's."""

    @abstractmethod
    def pause(self) -> None:
        """Before a fork: start nothing more, and wait for what runs, though not forever."""

    @abstractmethod
    def resume(self) -> None:
        """After a fork, in the parent."""

    def _is_done(self, ticket: Ticket) -> bool:
        return ticket._is_finished

    def _wait_for(self, ticket: Ticket, timeout_seconds: float | None) -> bool:
        """Return when it is done, or false when the time is up; obeys interrupts while it waits."""
        return ticket._await_finish(timeout_seconds)

    def __repr__(self) -> str:
        return f"<{self.name} engine>"


def find_span(memory: Any, *, is_written: bool) -> Span:
    """Where the bytes of a buffer, CPU tensor, tensor storage, array or memoryview lie."""
    if isinstance(memory, Buffer):
        return Span(memory.address, memory.length_bytes, memory.memory)
    if isinstance(memory, torch.Tensor):
        if memory.device.type != "cpu" or not memory.is_contiguous():
            raise ValueError(
                f"expected a contiguous CPU tensor, got one on {memory.device} with shape "
                f"{tuple(memory.shape)} and strides {memory.stride()}"
            )
        return Span(memory.data_ptr(), memory.nbytes, memory)
    if isinstance(memory, torch.UntypedStorage):
        return Span(memory.data_ptr(), memory.nbytes(), memory)
    view = memoryview(memory)
    if not view.c_contiguous or (is_written and view.readonly):
        wanted = "contiguous and writable" if is_written else "contiguous"
        raise ValueError(f"expected memory that is {wanted}, got {type(memory).__name__}: {view!r}")
    if view.nbytes == 0:
        return Span(0, 0, view)
    return Span(np.frombuffer(view, np.uint8).ctypes.data, view.nbytes, view)


def build_error(
    action: Action, file: StorageFile, failures: Sequence[Failure], count: int
) -> StorageError:
    """The error for a ticket: its first failure, and how many there were."""
    first = min(failures)
    detail = ""
    if count > 1:
        detail = f"{len(failures):,} of {count:,} requests failed; the first of them is named."
    if first.code == END_OF_FILE:
        return ShortReadError(
            file.path, first.offset_bytes, first.length_bytes, first.moved_bytes, detail
        )
    if action == "write" and first.moved_bytes:
        written = f"{first.moved_bytes:,} of {first.length_bytes:,} bytes were written."
        detail = f"{written} {detail}".rstrip()
    if first.code == errno.ENOSPC:
        detail = f"{detail}\n  Free some space or use another directory.".lstrip()
    return StorageError(
        action, file.path, first.offset_bytes, first.length_bytes, first.code, detail
    )


def _require_writable(file: StorageFile) -> None:
    if not file.is_writable:
        raise ValueError(f"{file.path} was opened for reading; open it with mode 'write'")


def _check_batch(
    offsets_bytes: npt.ArrayLike,
    lengths_bytes: npt.ArrayLike,
    target_offsets_bytes: npt.ArrayLike,
    span: Span,
) -> Batch:
    # Copies: the caller may change its arrays while the requests are under way.
    offsets = np.array(offsets_bytes, np.int64)
    lengths = np.array(np.broadcast_to(np.asarray(lengths_bytes, np.int64), offsets.shape))
    positions = np.array(target_offsets_bytes, np.int64)
    if offsets.ndim != 1 or positions.shape != offsets.shape:
        raise ValueError(
            "offsets in the file and in the memory must be of one dimension and equally long, got "
            f"shapes {offsets.shape} and {positions.shape}"
        )
    if len(offsets) == 0:
        return Batch(offsets, lengths, positions)
    if min(offsets.min(), lengths.min(), positions.min()) < 0:
        raise ValueError("offsets and lengths must not be negative")
    stop = int((positions + lengths).max())
    if stop > span.length_bytes:
        raise ValueError(f"the memory has {span.length_bytes:,} bytes, but byte {stop:,} is needed")
    return Batch(offsets, lengths, positions)


_engines: weakref.WeakSet[StorageEngine] = weakref.WeakSet()
_callback_lock = threading.Lock()
_generation = 0  # how many forks lie between this process and the one that imported shorthaul


def _before_fork() -> None:
    # On older kernels, a page that a direct read is filling during a fork may end up with the child
    # only (open(2), O_DIRECT): so nothing is under way when the fork happens.
    for engine in list(_engines):
        if engine.moves_memory:
            engine.pause()


def _after_fork_in_parent() -> None:
    for engine in list(_engines):
        if engine.moves_memory:
            engine.resume()


def _after_fork_in_child() -> None:
    global _generation, _callback_lock
    _generation += 1
    _callback_lock = threading.Lock()
    for engine in list(_engines):
        engine._start_afresh()


def _close_engines() -> None:
    for engine in list(_engines):
        engine.close()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
atexit.register(_close_engines)
