"""The engine for Linux with io_uring: one ring, one thread outside of Python, thousands of requests
under one ticket.

The ring and its thread are in `uring.cpp`. Here are the tickets: a request is handed over, and when
it is done whoever waits for it, or else the listening thread, settles its ticket.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import itertools
import os
import threading
import time
from importlib import resources
from typing import Any

from shorthaul.errors import (
    CancelledError,
    EngineClosedError,
    EngineUnavailableError,
    ShorthaulError,
    StorageError,
)
from shorthaul.interrupts import (
    Ending,
    PatientLock,
    deferred_interrupts,
    obey_interrupts,
    when_gone,
)
from shorthaul.jit import CppSource, Function, NumberArgument, load_kernel
from shorthaul.meter import record_stall
from shorthaul.storage.engine import (
    IN_FLIGHT_BYTES,
    PAUSE_LIMIT_SECONDS,
    EngineStats,
    Failure,
    Request,
    StorageEngine,
    Ticket,
)
from shorthaul.units import parse_bytes

# As `State` in uring.cpp.
_CANCELLED, _CLOSED = 3, 4

_REASONS = {
    errno.EPERM: "io_uring is forbidden here, by the sysctl kernel.io_uring_disabled or by a container",
    errno.ENOSYS: "the kernel has no io_uring, or one from before Linux 5.6",
    errno.ENOMEM: "there is too little memory that may be locked (ulimit -l)",
}


def _function(name: str, arguments: str, returns: str = "nothing") -> Function:
    """`arguments` as words; those that end in `*` are addresses."""
    return Function(
        name,
        tuple(
            NumberArgument(word.rstrip("*"), "address" if word.endswith("*") else "int64")
            for word in arguments.split()
        ),
        returns,
    )


_FILE = "direct buffered alignment memory_alignment"
# These only look at state under a lock that is never held for long: quicker with Python's own lock
# kept. The others may sleep, or copy much, and let go of it.
_QUICK = (
    _function(
        "ring_submit",
        f"engine* id is_write priority {_FILE} memory* offset length is_polled can_wait",
        "int64",
    ),
    _function("ring_facts", "engine* id facts*", "int64"),
    _function("ring_knows", "engine* id", "int64"),
    _function("ring_take", "engine* id failures*"),
    _function("ring_cancel", "engine* id", "int64"),
    _function("ring_stats", "engine* facts*"),
    _function("ring_resume", "engine*"),
    _function("ring_descriptor", "engine*", "int64"),
    _function("ring_abandon", "engine*"),
)
_SLOW = (
    _function("ring_open", "depth in_flight_limit piece_bytes window_bytes error*", "address"),
    _function(
        "ring_submit_many",
        f"engine* id is_write priority {_FILE} memory* bytes count offsets* lengths* positions*",
        "int64",
    ),
    _function("ring_wait", "engine* id nanoseconds", "int64"),
    _function("ring_next_finished", "engine* ids* capacity", "int64"),
    _function("ring_pause", "engine* nanoseconds", "int64"),
    _function("ring_close", "engine*"),
    _function("ring_free", "engine*"),
    _function(
        "move_ranges",
        f"is_write {_FILE} memory* offsets* lengths* positions* first last facts* failures*",
        "int64",
    ),
)
_TYPES: dict[str, Any] = {
    "int64": ctypes.c_int64,
    "address": ctypes.c_void_p,
    "nothing": None,
}


def emit_ring(*, definitions: str = "") -> CppSource:
    """The source of the ring; `definitions` go before it."""
    text = (resources.files("shorthaul.storage") / "uring.cpp").read_text(encoding="utf-8")
    return CppSource("storage_ring", definitions + text, _QUICK + _SLOW, ("-pthread",))


class RingLibrary:
    """The functions of uring.cpp.

    Compiled and cached as any kernel is, but called without the contract checks and the counting of
    launches, which are made for arithmetic: waiting for a disk is no kernel launch.
    """

    def __init__(self, source: CppSource) -> None:
        self.path = str(load_kernel(source).entry.library)
        keeping, letting_go = ctypes.PyDLL(self.path), ctypes.CDLL(self.path)
        self._bind(keeping, _QUICK)
        self._bind(letting_go, _SLOW)
        self.submit_or_wait = letting_go["ring_submit"]
        self.submit_or_wait.argtypes = self.ring_submit.argtypes
        self.submit_or_wait.restype = self.ring_submit.restype

    def _bind(self, library: ctypes.CDLL, functions: tuple[Function, ...]) -> None:
        for function in functions:
            bound = library[function.name]
            bound.restype = _TYPES[function.returns]
            bound.argtypes = [
                _TYPES[each.type] for each in function.arguments if isinstance(each, NumberArgument)
            ]
            setattr(self, function.name, bound)

    def __getattr__(self, name: str) -> Any:  # for the type checker: bound above
        raise AttributeError(name)


@functools.cache
def load_library() -> RingLibrary:
    """The functions, compiled when this user has never needed them on this machine."""
    return RingLibrary(emit_ring())


class UringTicket(Ticket):
    """A ticket whose state the ring knows, under a number."""

    number = 0


class UringEngine(StorageEngine):
    """One io_uring, direct where possible, without Python in between.

    Args:
        depth: Requests at the disk at once, 1 to 4096 (default 256).
        in_flight_bytes: Bytes of unfinished tickets, above which submitting waits (default 512
            MiB).
        piece_bytes: What one request asks of the disk at most, a multiple of 64 KiB (default 2
            MiB).
        window_bytes: How much of the less urgent (prefetches, writes) is at the disk at once, where
            an urgent read would be behind it (default 16 MiB).
    """

    name = "uring"

    def __init__(
        self,
        *,
        depth: int = 256,
        in_flight_bytes: int | str = IN_FLIGHT_BYTES,
        piece_bytes: int = 2 * 2**20,
        window_bytes: int | str = 16 * 2**20,
    ) -> None:
        in_flight_limit_bytes = parse_bytes(in_flight_bytes)
        if not 1 <= depth <= 4096 or in_flight_limit_bytes < 1:
            raise ValueError(
                "depth must be from 1 to 4096 and in_flight_bytes positive, got "
                f"{depth} and {in_flight_limit_bytes}"
            )
        if piece_bytes < 65536 or piece_bytes % 65536 or piece_bytes >= 2**31:
            raise ValueError(f"piece_bytes must be a multiple of 64 KiB, got {piece_bytes}")
        self.depth = depth
        self.in_flight_limit_bytes = in_flight_limit_bytes
        self._options = (depth, in_flight_limit_bytes, piece_bytes, parse_bytes(window_bytes))
        try:
            self._library = self._find_library()
        except ShorthaulError as error:  # no compiler, a cache that cannot be used
            reason = f"its ring must be compiled, and {str(error).splitlines()[0].rstrip('.')}"
            raise EngineUnavailableError(self.name, reason) from error
        self._tickets: dict[int, UringTicket] = {}
        self._is_closed = False
        self._ring: int | None = None
        self._free: Ending | None = None
        self._start_afresh()
        self._open()
        super().__init__()

    def _find_library(self) -> RingLibrary:
        return load_library()

    def _start_afresh(self) -> None:
        for ticket in self._tickets.values():  # the parent's
            if ticket._request is not None:
                ticket._request.file.drop()
        if self._ring is not None:
            self._library.ring_abandon(self._ring)
        if self._free is not None:
            self._free.cancel()
        self._ring = self._free = None
        self._tickets = {}
        self._abandoned: list[int] = []  # taken in by the ring, but an error left before the ticket
        self._numbers = itertools.count(1)
        self._lock = PatientLock()
        self._listener: threading.Thread | None = None

    def _open(self) -> int:
        """The ring, made now if this process has none."""
        with self._lock:
            if self._is_closed:
                raise EngineClosedError("the uring engine is closed; open another")
            if self._ring is not None:
                return self._ring
            error = ctypes.c_int64()
            ring = self._library.ring_open(*self._options, ctypes.addressof(error))
            if ring is None:
                reason = _REASONS.get(error.value, os.strerror(error.value))
                raise EngineUnavailableError(self.name, reason)
            self._ring = int(ring)
            # Threads that wait in the ring hold this engine, so it is free only when they left.
            self._free = when_gone(self, self._library.ring_free, self._ring)
            self._listener = threading.Thread(
                target=self._listen, args=(self._ring,), name="shorthaul-uring", daemon=True
            )
            self._listener.start()
            return self._ring

    def _submit(self, request: Request) -> Ticket:
        self._settle_abandoned()
        ticket = UringTicket(self, request)
        ticket.number = next(self._numbers)
        self._tickets[ticket.number] = ticket
        try:
            failed = self._hand_over(self._ring or self._open(), ticket.number, request)
        except BaseException:
            if self._ring is not None and self._library.ring_knows(self._ring, ticket.number):
                # The kernel may be at it: the ticket keeps file and memory until it is done.
                self._abandoned.append(ticket.number)
            else:
                self._tickets.pop(ticket.number, None)
                request.file.drop()
            raise
        if failed:
            del self._tickets[ticket.number]
            request.file.drop()
            if failed == -errno.ESHUTDOWN:
                raise EngineClosedError("the uring engine is closed; open another")
            raise StorageError(
                request.action,
                request.file.path,
                request.offset_bytes,
                request.length_bytes,
                -failed,
                "The ring of this engine cannot be used any more; open another engine.",
            )
        return ticket

    def _hand_over(self, ring: int, number: int, request: Request) -> int:
        file, span, batch = request.file, request.span, request.batch
        alignment = file.write_alignment_bytes if request.is_write else file.alignment_bytes
        direct = file.direct_descriptor if file.is_direct else -1
        places = (direct, file.buffered_descriptor, alignment, file.memory_alignment_bytes)
        started = time.perf_counter()
        if batch is None:
            first = (ring, number, request.is_write, request.priority, *places)
            rest = (span.address, request.offset_bytes, request.length_bytes, self.is_polled)
            failed = self._library.ring_submit(*first, *rest, False)
            if failed != -errno.EAGAIN:
                return int(failed)
            while (failed := self._library.submit_or_wait(*first, *rest, True)) == -errno.EINTR:
                obey_interrupts()  # the ring has not taken it in
        else:
            addresses = (each.ctypes.data for each in batch)
            values = (ring, number, request.is_write, request.priority, *places, span.address)
            counts = (request.length_bytes, request.range_count)
            arguments = (*values, *counts, *addresses)
            while (failed := self._library.ring_submit_many(*arguments)) == -errno.EINTR:
                obey_interrupts()
        record_stall(time.perf_counter() - started, request.why)
        return int(failed)

    def _wait_for(self, ticket: Ticket, timeout_seconds: float | None) -> bool:
        assert isinstance(ticket, UringTicket)
        started = time.monotonic()
        left = -1 if timeout_seconds is None else max(0, round(timeout_seconds * 1e9))
        while not ticket._is_finished:
            outcome = self._library.ring_wait(self._ring, ticket.number, left)
            self._settle(ticket.number)
            if outcome == -errno.EINTR and not ticket._is_finished:
                obey_interrupts()
            if outcome == -errno.ENOENT:
                ticket._await_finish(None)  # another thread is settling it
            elif outcome == 0:
                return ticket._is_finished
            elif timeout_seconds is not None:
                left = max(0, round((started + timeout_seconds - time.monotonic()) * 1e9))
        return True

    def _is_done(self, ticket: Ticket) -> bool:
        assert isinstance(ticket, UringTicket)
        self._settle(ticket.number)
        return ticket._is_finished

    def _listen(self, ring: int) -> None:
        """Settle tickets that end while nobody waits for them."""
        numbers = (ctypes.c_int64 * 1024)()
        next_finished = self._library.ring_next_finished
        while count := next_finished(ring, ctypes.addressof(numbers), len(numbers)):
            for number in numbers[:count]:
                self._settle(number)

    def _settle(self, number: int) -> None:
        """If the request is done, finish its ticket, once."""
        if number in self._tickets:
            with deferred_interrupts:
                self._settle_known(number)

    def _settle_known(self, number: int) -> None:
        facts = (ctypes.c_int64 * 4)()
        if not self._library.ring_facts(self._ring, number, ctypes.addressof(facts)):
            return
        state, moved_bytes, refused, failure_count = facts
        ticket = self._tickets.pop(number, None)
        if ticket is None:  # another thread was quicker
            return
        failures = (ctypes.c_int64 * (5 * failure_count))()
        self._library.ring_take(self._ring, number, ctypes.addressof(failures))
        if refused and ticket._request is not None:
            ticket._request.file.give_up_direct()
        error: Exception | None = None
        if state == _CANCELLED:
            error = CancelledError(f"the {ticket._describe()} was cancelled")
        elif state == _CLOSED:
            error = EngineClosedError("the uring engine was closed before this request was done")
        ticket._finish(
            moved_bytes,
            [Failure(*failures[at : at + 5]) for at in range(0, len(failures), 5)],
            error,
        )

    def _settle_abandoned(self) -> None:
        """Finish the tickets that nobody got: no one asks for them."""
        for number in list(self._abandoned):
            self._settle(number)
            if number not in self._tickets:
                self._abandoned.remove(number)

    def cancel(self, ticket: Ticket) -> bool:
        """Withdraw a request of which nothing has started."""
        if not isinstance(ticket, UringTicket) or ticket._is_finished:
            return False
        ticket._require_same_process()
        with deferred_interrupts:
            is_cancelled = bool(self._library.ring_cancel(self._ring, ticket.number))
            if is_cancelled:
                self._settle(ticket.number)
        return is_cancelled

    def close(self) -> None:
        """End: what runs is waited for, what is queued ends with `EngineClosedError`."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._ring is None:
                return
            self._library.ring_close(self._ring)
            if self._listener is not None and self._listener is not threading.current_thread():
                self._listener.join()
            for number in list(self._tickets):
                self._settle(number)

    def pause(self) -> None:
        """Start nothing more, and wait for what runs, though not forever."""
        if self._ring is not None and not self._is_closed:
            self._library.ring_pause(self._ring, round(PAUSE_LIMIT_SECONDS * 1e9))

    def resume(self) -> None:
        """Go on."""
        if self._ring is not None and not self._is_closed:
            self._library.ring_resume(self._ring)

    def stats(self) -> EngineStats:
        """What was done so far, and what is in flight now."""
        if self._ring is None:
            return EngineStats(0, 0, 0, 0, 0, 0, 0, 0)
        return EngineStats(*self._count()[:8])

    def count_enter_calls(self) -> int:
        """How often the kernel was entered: batches need few calls, and an idle engine none."""
        return self._count()[8]

    def _count(self) -> list[int]:
        facts = (ctypes.c_int64 * 9)()
        self._library.ring_stats(self._ring, ctypes.addressof(facts))
        return list(facts)
