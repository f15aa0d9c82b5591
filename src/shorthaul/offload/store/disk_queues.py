"""The two ways to the disk: records being written, and records being read back.

Each has a storage engine of its own, so that a read never waits behind a queue of writes. Nothing
here knows of budgets: the store asks a lane to finish or to give up something when it needs room.
"""

from __future__ import annotations

import collections
import errno
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shorthaul.errors import ActivationLostError, CancelledError, SpoolFullError, StorageError
from shorthaul.offload.drive.drives import Drives
from shorthaul.offload.drive.spool import Slot, SpoolSet
from shorthaul.offload.saved.counts import Counts
from shorthaul.offload.saved.record import Record, State
from shorthaul.storage.buffer_pool import Buffer, Bytes
from shorthaul.storage.engine import Priority, StorageEngine, Ticket

_log = logging.getLogger("shorthaul")

WHY = "activations"
# After this many failed writes the disk is not asked again: the next one would fail too.
TOLERATED_FAILURES = 3

Slots = tuple[Slot, ...]
Tickets = tuple[Ticket, ...]


def submit(
    engine: StorageEngine,
    buffer: Buffer,
    slots: Sequence[Slot],
    tickets: list[Ticket],
    *,
    is_write: bool,
    priority: Priority = Priority.WRITE,
    why: str = WHY,
) -> None:
    """Write a buffer to slots, or read it back: one ticket for each slot is added to `tickets`."""
    move = engine.write if is_write else engine.read
    position = 0
    for slot in slots:
        piece: Buffer | Bytes = buffer
        if slot.length_bytes != buffer.length_bytes:
            piece = buffer.memory[position : position + slot.length_bytes]
        tickets.append(move(slot.file, slot.offset_bytes, piece, priority=priority, why=why))
        position += slot.length_bytes


def wait_for(tickets: Tickets, counts: Counts) -> None:
    """Wait for all of them, and count the time as stalled; raises what went wrong."""
    if all(each.done for each in tickets):
        for each in tickets:
            each.wait()
        return
    started = time.perf_counter()
    try:
        for each in tickets:
            each.wait()
    finally:
        counts.stall_seconds += time.perf_counter() - started


def end_quietly(engine: StorageEngine, tickets: Tickets) -> None:
    """Return when none of the tickets touches its memory any more, whatever became of them."""
    for ticket in tickets:
        if not engine.cancel(ticket):
            try:
                ticket.wait()
            except (StorageError, CancelledError) as error:
                # Nobody wants these bytes any more; the error's frames would hold their record.
                error.__traceback__ = None


def _nobody() -> None:
    """In place of a record that is not to be told."""


@dataclass(eq=False)
class _Store:
    """A write under way. It does not keep its record alive."""

    record: Callable[[], Record | None]
    tickets: Tickets
    slots: Slots
    size_bytes: int


class WriteLane:
    """Records on their way to the disk, the oldest first, and what the disk said to them."""

    def __init__(
        self,
        engine: StorageEngine,
        spools: SpoolSet,
        counts: Counts,
        *,
        raises_when_full: bool,
        wear: Drives | None,
    ) -> None:
        self.engine, self.spools = engine, spools
        self.in_flight_bytes = 0
        self.refusal: str | None = None  # why the disk takes no more, once it does not
        self.quarantined_bytes = 0  # in slots that failed and are not used again
        self._counts, self._wear = counts, wear
        self.raises_when_full = raises_when_full
        self._stores: collections.deque[_Store] = collections.deque()
        self._failures = 0

    def __len__(self) -> int:
        return len(self._stores)

    def take_slots(self, length_bytes: int) -> Slots | None:
        """Room on disk; `None` where today's writes are used up or the disk takes no more."""
        if self.why_closed(length_bytes) is None:
            try:
                return self.spools.take(length_bytes)
            except (SpoolFullError, StorageError) as error:
                if self.raises_when_full:
                    raise
                self._refuse(str(error).splitlines()[0])
        self._counts.refused_stores += 1
        return None

    def start(self, record: Record, buffer: Buffer, slots: Slots) -> None:
        """Begin to write a record's buffer."""
        tickets: list[Ticket] = []
        store = _Store(weakref.ref(record), (), slots, record.payload_bytes)
        try:
            submit(self.engine, buffer, slots, tickets, is_write=True)
        except BaseException:  # its slots come back when nothing of it is being written
            store.record = _nobody
            record.move_to(State.KEPT)
            raise
        finally:
            store.tickets = tuple(tickets)
            self._stores.append(store)
            self.in_flight_bytes += store.size_bytes
        record.holdings.slots, record.holdings.stores = slots, store.tickets

    def write_now(self, record: Record, content: Bytes, slots: Slots) -> bool:
        """Write what was kept in memory, and wait for it; false when the disk did not take it."""
        tickets: list[Ticket] = []
        position = 0
        held = record.holdings
        held.slots = slots
        try:
            for slot in slots:
                piece = content[position : position + slot.length_bytes]
                position += slot.length_bytes
                tickets.append(self.engine.write(slot.file, slot.offset_bytes, piece, why=WHY))
            # Of no size, as far as the bytes in flight are concerned: they have no buffer.
            self._finish(_Store(weakref.ref(record), tuple(tickets), slots, 0))
        except BaseException:
            if record.state is State.KEPT and held.slots:  # interrupted, and not failed
                held.slots = ()
                self._stores.append(_Store(_nobody, tuple(tickets), slots, 0))
            raise
        return record.state is State.STORED

    def why_closed(self, length_bytes: int) -> str | None:
        """Why the disk would not take that many bytes, as far as is known without asking it."""
        return self.refusal or (None if self._wear is None else self._wear.refusal(length_bytes))

    def withdraw(self, record: Record) -> bool:
        """Call off a store that has not begun; false when it is too late for that."""
        held = record.holdings
        if len(held.stores) != 1 or not self.engine.cancel(held.stores[0]):
            return False
        store = next(each for each in self._stores if each.tickets is held.stores)
        self._stores.remove(store)
        self.in_flight_bytes -= store.size_bytes
        self.spools.give(store.slots)
        self._counts.cancelled_stores += 1
        held.slots, held.stores = (), ()
        record.move_to(State.KEPT)
        return True

    def finish_done(self) -> None:
        """Take note of the stores that are done, as far as they are in order."""
        while self._stores and all(each.done for each in self._stores[0].tickets):
            self.finish_oldest()

    def finish_oldest(self) -> None:
        """Wait for the store that was begun first; its memory is given up if it succeeded."""
        self._finish(self._stores[0])

    def _finish(self, store: _Store) -> None:
        try:
            wait_for(store.tickets, self._counts)
        except CancelledError as error:  # the record is gone; a piece may still be on its way
            error.__traceback__ = None
            end_quietly(self.engine, store.tickets)
            self._take_off(store)
            self.spools.give(store.slots)
            return
        except StorageError as error:
            end_quietly(self.engine, store.tickets)
            self._take_off(store)
            self._note_failure(store, error)
            return
        self._take_off(store)
        record = store.record()
        self.note_written(store.slots)
        if record is None:
            self.spools.give(store.slots)
            return
        record.move_to(State.STORED)
        record.buffer, record.holdings.stores = None, ()

    def note_written(self, slots: Slots) -> None:
        """All of these slots have been written."""
        for slot in slots:
            self._counts.written_bytes += slot.length_bytes
            if self._wear is not None:
                self._wear.note_written(self.spools.place_of(slot), slot.length_bytes)

    def start_afresh(self) -> None:
        """In a forked child: writes under way are the parent's, as is their place on disk."""
        for store in self._stores:
            self.spools.give(store.slots)
        self._stores.clear()
        self.in_flight_bytes = 0

    def _take_off(self, store: _Store) -> None:
        """Nothing that can be interrupted is left to do for it."""
        if self._stores and self._stores[0] is store:
            self._stores.popleft()
            self.in_flight_bytes -= store.size_bytes

    def _note_failure(self, store: _Store, error: StorageError) -> None:
        """A write failed: its bytes are still in memory, and stay there.

        The slot may be used again only if the disk was full. After any other error it may be bad.
        """
        record = store.record()
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if is_full:
            self.spools.give(store.slots)
        else:
            self.quarantined_bytes += sum(slot.length_bytes for slot in store.slots)
        self._failures += 1
        self._counts.refused_stores += 1
        if record is not None:
            record.holdings.slots, record.holdings.stores = (), ()
            if record.state is State.STORING:
                record.move_to(State.KEPT)
        if self.raises_when_full:
            raise error
        error.__traceback__ = None  # its frames hold the record, and through it the memory
        if self.refusal is None and (is_full or self._failures >= TOLERATED_FAILURES):
            self._refuse(str(error).splitlines()[0])

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        _log.warning("offload: activations stay in memory from now on: %s", reason)


class ReadLane:
    """Records on their way back that nobody has asked for yet, and slots that are still read."""

    def __init__(self, engine: StorageEngine, spools: SpoolSet, counts: Counts) -> None:
        self.engine = engine
        self._loading: set[weakref.ref[Record]] = set()
        self.loading_bytes = 0  # of their ranges, and of those that died and are not drained yet
        self._spools, self._counts = spools, counts
        self._draining: list[tuple[Tickets, Slots]] = []

    @property
    def loading(self) -> list[Record]:
        """The records on their way back that are still needed."""
        return [record for each in self._loading if (record := each()) is not None]

    def start(self, record: Record, buffer: Buffer, priority: Priority) -> None:
        """Begin to read a record into a buffer."""
        tickets: list[Ticket] = []
        slots = record.holdings.slots
        try:
            submit(self.engine, buffer, slots, tickets, is_write=False, priority=priority)
        except BaseException:
            self._draining.append((tuple(tickets), ()))
            raise
        record.begin_load(buffer, tuple(tickets))
        self._loading.add(weakref.ref(record))
        self.loading_bytes += record.size_bytes

    def finish(self, record: Record) -> Buffer:
        """The buffer with the record's payload, once all of it is there."""
        load = record.load
        assert load is not None, "only a record that is loading can be finished"
        try:
            wait_for(load.tickets, self._counts)  # interrupted, it goes on loading
        except StorageError as error:
            self._take_off(record)
            raise lost(record, str(error)) from error
        self._take_off(record)
        self._counts.read_bytes += load.buffer.length_bytes
        return load.buffer

    def give_up(self, wanted: Record | None) -> bool:
        """Drop the read that would be used last; false when there is none."""
        candidates = [each for each in self.loading if each is not wanted]
        if not candidates:
            return False
        # What was packed first is needed last, or nearly: a wrong guess costs one read.
        record = min(candidates, key=lambda each: each.position)
        tickets = record.holdings.loads
        self._take_off(record)
        self._draining.append((tickets, ()))
        end_quietly(self.engine, tickets)
        return True

    def _take_off(self, record: Record) -> None:
        record.end_load()
        self._loading.discard(weakref.ref(record))
        self.loading_bytes -= record.size_bytes

    def drain(self, loads: Tickets, slots: Slots, loading_bytes: int) -> None:
        """Give slots back once the reads of a record that nobody needs are over."""
        self.loading_bytes -= loading_bytes
        if loads:
            self._loading = {each for each in self._loading if each() is not None}
        for ticket in loads:
            self.engine.cancel(ticket)
        self._draining.append((loads, slots))

    def start_afresh(self) -> None:
        """In a forked child: reads under way are the parent's, and nothing here is being read."""
        for _, slots in self._draining:
            self._spools.give(slots)
        self._draining.clear()
        self._loading.clear()
        self.loading_bytes = 0

    def finish_drained(self) -> None:
        """Give back the slots that nothing reads any more."""
        if self._draining:
            still: list[tuple[Tickets, Slots]] = []
            for tickets, slots in self._draining:
                if all(each.done for each in tickets):
                    self._spools.give(slots)
                else:
                    still.append((tickets, slots))
            self._draining = still


def lost(record: Record, reason: str) -> ActivationLostError:
    """The error for a record that did not come back as it went."""
    slot = record.holdings.slots[0]
    return ActivationLostError(
        record.label, record.scope, str(slot.file.path), slot.offset_bytes, reason.rstrip(".")
    )
