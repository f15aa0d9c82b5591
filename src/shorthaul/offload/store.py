"""Moves records out of memory and back, within a budget, and never loses one.

Nothing here runs in a thread of its own: the storage engine works in the background, and what it has
finished is taken note of at the next event (a tensor packed or unpacked), which is also the first
time that anybody could use the room. The rules:

- memory is given up only after every byte has been written;
- live bytes (kept, being written, brought back) never exceed the budget: a store waits for earlier
  ones, a load takes the place of prefetches that nobody asked for yet, and what cannot fit is an
  error before it is allocated;
- a slot is used again only when nothing reads or writes it any more.
"""

from __future__ import annotations

import collections
import errno
import logging
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import torch

from shorthaul.errors import (
    ActivationLostError,
    CancelledError,
    OffloadBudgetError,
    SpoolFullError,
    StorageError,
)
from shorthaul.meter import record_kept
from shorthaul.offload.compression import Codec
from shorthaul.offload.copying import Copier
from shorthaul.offload.endurance import WearLimit
from shorthaul.offload.identity import StorageKey, StorageReference, bytes_of_range
from shorthaul.offload.record import Load, Record, State
from shorthaul.offload.spool import Slot, SpoolSet, round_to_blocks
from shorthaul.offload.unfinished import UnfinishedTensors
from shorthaul.storage.buffer_pool import Buffer, BufferPool, choose_class_bytes
from shorthaul.storage.engine import Priority, StorageEngine, Ticket

_log = logging.getLogger("shorthaul")

WHY = "activations"
# After this many failed writes the disk is not asked again: the next one would fail too.
TOLERATED_FAILURES = 3
# How long to wait for memory that nobody is known to need before the budget is called too small.
PATIENCE_ROUNDS, PATIENCE_SECONDS = 50, 0.004
# A payload that is not at least this much smaller is written as it is: unpacking costs time too.
SMALLEST_GAIN = 0.95
# Records read ahead at most, however small they are: each use looks through those on their way.
LONGEST_READ_AHEAD = 64
# Storages known to outlive their graphs are looked through for dead ones when there are more of them
# than this, and then when they have doubled.
SMALLEST_LIVING_LIMIT = 64


@dataclass
class Counts:
    """What happened to saved tensors so far; `report` shows them."""

    offloaded: int = 0
    offloaded_bytes: int = 0
    kept: int = 0
    kept_bytes: int = 0
    deduplicated: int = 0
    deduplicated_bytes: int = 0
    forwarded: int = 0  # used while their store was still under way
    forwarded_bytes: int = 0
    cancelled_stores: int = 0
    written_bytes: int = 0
    read_bytes: int = 0
    prefetched: int = 0
    demand_reads: int = 0
    found_alive: int = 0  # needed again while somebody else still held the memory
    refused_stores: int = 0  # the disk was full or failed; kept in memory instead
    peak_live_bytes: int = 0
    peak_saved_bytes: int = 0  # what would have been live if everything had been kept
    compressed: int = 0
    compressed_bytes: int = 0  # saved by compression
    left_alone: collections.Counter[str] = field(default_factory=collections.Counter)


@dataclass(eq=False)
class _Store:
    """A write under way. It does not keep its record alive."""

    record: weakref.ref[Record]
    tickets: tuple[Ticket, ...]
    slots: tuple[Slot, ...]
    size_bytes: int


@dataclass(frozen=True)
class _Remains:
    """What a record that nobody needs any more leaves behind."""

    state: State
    key: StorageKey
    slots: tuple[Slot, ...]
    stores: tuple[Ticket, ...]
    loads: tuple[Ticket, ...]
    counted_bytes: int
    original: StorageReference


class ActivationStore:
    """Everything that one offloading context moves and keeps."""

    def __init__(
        self,
        reader: StorageEngine,
        writer: StorageEngine,
        pool: BufferPool,
        spools: SpoolSet,
        *,
        budget_bytes: int | None,
        in_flight_bytes: int,
        prefetch_bytes: int,
        has_checksums: bool,
        raises_when_full: bool,
        codec: Codec | None = None,
        wear: WearLimit | None = None,
    ) -> None:
        self.reader, self.writer, self.pool, self.spools = reader, writer, pool, spools
        self.budget_bytes = budget_bytes
        self.in_flight_bytes, self.prefetch_bytes = in_flight_bytes, prefetch_bytes
        self.has_checksums, self.raises_when_full = has_checksums, raises_when_full
        self.codec, self.wear = codec, wear
        self.lock = threading.RLock()
        self.counts = Counts()
        self.refusal: str | None = None  # why the disk takes no more, once it does not
        self._copier = Copier()
        self._records: weakref.WeakValueDictionary[StorageKey, Record] = (
            weakref.WeakValueDictionary()
        )
        self._stores: collections.deque[_Store] = collections.deque()
        self._loading: weakref.WeakSet[Record] = weakref.WeakSet()
        self._draining: list[tuple[tuple[Ticket, ...], tuple[Slot, ...]]] = []
        # Appended to from wherever a record dies, perhaps inside this class: no lock, no allocation.
        self._forgotten: collections.deque[_Remains] = collections.deque()
        self._living: dict[int, StorageReference] = {}
        self._living_limit = SMALLEST_LIVING_LIMIT
        self._unfinished = UnfinishedTensors()
        self._kept_bytes = 0
        self._saved_bytes = 0
        self._failures = 0
        self._quarantined_bytes = 0
        weakref.finalize(self, _close_all, reader, writer, spools, pool)

    # What is live

    @property
    def live_bytes(self) -> int:
        """Activation bytes in memory on account of this store: kept, in flight, brought back."""
        return self._kept_bytes + self.pool.in_use_bytes

    @property
    def used_slots_bytes(self) -> int:
        """Bytes of disk in use, without those that failed and are not used again."""
        return self.spools.used_bytes - self._quarantined_bytes

    def _note_live(self) -> None:
        self.counts.peak_live_bytes = max(self.counts.peak_live_bytes, self.live_bytes)

    # Packing

    def find(self, tensor: torch.Tensor, key: StorageKey) -> Record | None:
        """The record of these bytes, if they are already saved.

        Not every view shares its storage's version counter (`unsafe_chunk`, as in GRU cells, and
        `.data` do not), so a version alone does not prove that the bytes are those that were saved.
        Their sum does: it is read at memory speed, and only when something is saved again.
        """
        record = self._records.get(key)
        if record is None or record.kept is not None:
            return record
        is_same = self._copier.sum_only(bytes_of_range(tensor, key)) == record.content_sum
        return record if is_same else None

    def lives_anyway(self, storage: int) -> bool:
        """Whether a storage outlived the graph that saved it before: a buffer, a constant, data."""
        reference = self._living.get(storage)
        if reference is None:
            return False
        if not reference.is_alive:
            del self._living[storage]
            return False
        return True

    def keep(self, tensor: torch.Tensor, key: StorageKey, *, scope: str, position: int) -> Record:
        """Save the bytes by keeping their memory."""
        with self.lock:
            self.settle()
            self._require_room(key.length_bytes)
            record = self._make_record(tensor, key, State.KEPT, scope, position)
            record.kept = bytes_of_range(tensor, key)
            self._count_kept(record)
            return record

    def offload(
        self, tensor: torch.Tensor, key: StorageKey, *, scope: str, position: int
    ) -> Record:
        """Save the bytes on disk; they stay in memory while they are being written.

        Where the disk takes no more they are kept, unless that would exceed the budget.
        """
        with self.lock:
            self.settle()
            payload, codec = self._make_payload(tensor, key)
            slots = self._take_slots(payload.numel())
            if slots is None:
                return self.keep(tensor, key, scope=scope, position=position)
            try:
                buffer = self._take_buffer(payload.numel(), is_store=True)
            except BaseException:
                self.spools.give(slots)
                raise
            record = self._make_record(tensor, key, State.STORING, scope, position)
            record.codec, record.slots = codec, slots
            record.dtype, record.row = tensor.dtype, tensor.shape[-1:]
            self._fill(record, buffer, payload)
            if codec is not None:
                record.content_sum = self._copier.sum_only(bytes_of_range(tensor, key))
            record.stores = self._submit(buffer, slots, is_write=True)
            self._stores.append(_Store(weakref.ref(record), record.stores, slots, payload.numel()))
            if not tensor.requires_grad:
                self._unfinished.watch(record, bytes_of_range(tensor, key))
            self.counts.offloaded += 1
            self.counts.offloaded_bytes += key.length_bytes
            self._note_live()
            return record

    def _make_record(
        self, tensor: torch.Tensor, key: StorageKey, state: State, scope: str, position: int
    ) -> Record:
        label = f"{tensor.dtype} {tuple(tensor.shape)}".replace("torch.", "")
        original = StorageReference(tensor.untyped_storage())
        record = Record(key, label, scope, original, state, position, on_forgotten=self._forget)
        self._records[key] = record
        self._saved_bytes += key.length_bytes
        self.counts.peak_saved_bytes = max(self.counts.peak_saved_bytes, self._saved_bytes)
        return record

    def _make_payload(
        self, tensor: torch.Tensor, key: StorageKey
    ) -> tuple[torch.Tensor, Codec | None]:
        """The bytes to write: those of the range, or fewer where a codec makes them fewer."""
        plain = bytes_of_range(tensor, key)
        if self.codec is None or key.length_bytes % tensor.itemsize:
            return plain, None
        packed = self.codec.compress(_as_rows(plain.view(tensor.dtype), tensor.shape[-1:]))
        if packed.numel() >= SMALLEST_GAIN * key.length_bytes:
            return plain, None
        self.counts.compressed += 1
        self.counts.compressed_bytes += key.length_bytes - packed.numel()
        return packed, self.codec

    def _fill(self, record: Record, buffer: Buffer, payload: torch.Tensor) -> None:
        record.buffer, record.payload_bytes = buffer, payload.numel()
        target = buffer.tensor(torch.uint8, (record.payload_bytes,))
        record.checksum = record.content_sum = self._copier.copy_and_sum(payload, target)

    def _open_payload(self, record: Record, buffer: Buffer) -> torch.UntypedStorage:
        """A storage with the record's bytes, from the payload in `buffer`."""
        content = buffer.tensor(torch.uint8, (record.payload_bytes,))
        if record.codec is None:
            return content.untyped_storage()
        whole = self._take_buffer(record.size_bytes, is_store=False, wanted=record)
        numbers = whole.tensor(record.dtype, (record.size_bytes // record.dtype.itemsize,))
        record.codec.decompress(content, _as_rows(numbers, record.row))
        return numbers.untyped_storage()

    def _take_slots(self, length_bytes: int) -> tuple[Slot, ...] | None:
        if self.wear is not None and not self.wear.allows(length_bytes):
            self.counts.left_alone["today's writes are used up"] += 1
            return None
        if self.refusal is None:
            try:
                return self.spools.take(length_bytes)
            except (SpoolFullError, StorageError) as error:
                if self.raises_when_full:
                    raise
                self._refuse(str(error).splitlines()[0])
        self.counts.refused_stores += 1
        return None

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        _log.warning("offload: activations stay in memory from now on: %s", reason)

    # Unpacking

    def restore(self, record: Record) -> tuple[torch.UntypedStorage, int]:
        """A storage that holds the record's bytes, and where in it they start."""
        with self.lock:
            self.settle(is_outside_operators=True)
            if record.kept is not None:
                return record.kept.untyped_storage(), record.key.start_bytes
            storage = None if record.restored is None else record.restored.revive(record.size_bytes)
            if storage is not None:
                return storage, 0
            if record.buffer is not None:
                storage = self._forward(record, record.buffer)
            else:
                original = record.original.revive(record.key.start_bytes + record.size_bytes)
                if original is not None:
                    self.counts.found_alive += 1
                    return original, record.key.start_bytes
                storage = self._finish_load(record)
            record.restored = StorageReference(storage)
            self._note_live()
            return storage, 0

    def prefetch(self, records: Iterable[Record]) -> None:
        """Start bringing records back, the first one first, as far as window and budget allow."""
        with self.lock:
            self.settle()
            waiting_bytes = sum(each.size_bytes for each in self._loading)
            for record in records:
                if len(self._loading) >= LONGEST_READ_AHEAD:
                    return
                if not self._has_to_be_read(record):
                    continue
                is_over_window = waiting_bytes + record.size_bytes > self.prefetch_bytes
                if (waiting_bytes and is_over_window) or not self._has_room(record.size_bytes):
                    return
                self._start_load(record, Priority.PREFETCH)
                waiting_bytes += record.size_bytes
                self.counts.prefetched += 1

    def _has_to_be_read(self, record: Record) -> bool:
        """Whether the bytes are on disk alone, and not on their way yet."""
        return (
            record.state is State.STORED
            and record.load is None
            and (record.restored is None or not record.restored.is_alive)
            and not record.original.is_alive
        )

    def _forward(self, record: Record, buffer: Buffer) -> torch.UntypedStorage:
        """Hand out the buffer that is being written; a store that has not begun is called off."""
        if record.state is State.STORING:
            self.counts.forwarded += 1
            self.counts.forwarded_bytes += record.size_bytes
            if len(record.stores) == 1 and self._cancel(record.stores[0]):
                self.counts.cancelled_stores += 1
                self._withdraw(record)
        return self._open_payload(record, buffer)

    def _withdraw(self, record: Record) -> None:
        """Keep a record in its buffer: its store will not happen, or did not."""
        self.spools.give(record.slots)
        self._stores = collections.deque(
            each for each in self._stores if each.tickets is not record.stores
        )
        record.slots, record.stores = (), ()
        record.move_to(State.KEPT)

    def _start_load(self, record: Record, priority: Priority) -> None:
        buffer = self._take_buffer(record.payload_bytes, is_store=False, wanted=record)
        tickets = self._submit(buffer, record.slots, is_write=False, priority=priority)
        record.load = Load(buffer, tickets)
        self._loading.add(record)

    def _finish_load(self, record: Record) -> torch.UntypedStorage:
        if record.load is None:
            self.counts.demand_reads += 1
            self._start_load(record, Priority.DEMAND)
        load = record.load
        assert load is not None, "a load that was just started is there"
        record.load = None
        self._loading.discard(record)
        try:
            for ticket in load.tickets:
                ticket.wait()
        except StorageError as error:
            raise self._lost(record, str(error)) from error
        self.counts.read_bytes += load.buffer.length_bytes
        content = load.buffer.tensor(torch.uint8, (record.payload_bytes,))
        if self.has_checksums and self._copier.sum_only(content) != record.checksum:
            raise self._lost(record, "its checksum is not the one it was written with")
        return self._open_payload(record, load.buffer)

    def _lost(self, record: Record, reason: str) -> ActivationLostError:
        slot = record.slots[0]
        return ActivationLostError(
            record.label, record.scope, str(slot.file.path), slot.offset_bytes, reason.rstrip(".")
        )

    # Room

    def _has_room(self, length_bytes: int) -> bool:
        if self.budget_bytes is None:
            return True
        needed_bytes = choose_class_bytes(round_to_blocks(length_bytes))
        return self.live_bytes + needed_bytes <= self.budget_bytes

    def _require_room(self, length_bytes: int, wanted: Record | None = None) -> None:
        """Wait for stores, then give up prefetches, until `length_bytes` more fit the budget."""
        patience = PATIENCE_ROUNDS
        while not self._has_room(length_bytes):
            if self._stores:
                self._finish_oldest_store()
            elif not self._give_up_prefetch(wanted):
                if patience == 0:
                    self._raise_no_room(length_bytes)
                # A worker of the engine, or an operator in another thread, may let go of memory a
                # moment after it is done with it.
                patience -= 1
                time.sleep(PATIENCE_SECONDS)

    def _raise_no_room(self, length_bytes: int) -> NoReturn:
        assert self.budget_bytes is not None, "without a budget there is always room"
        needed_bytes = self.live_bytes + choose_class_bytes(round_to_blocks(length_bytes))
        raise OffloadBudgetError(needed_bytes, self.budget_bytes, "by tensors that are in use")

    def _take_buffer(
        self, length_bytes: int, *, is_store: bool, wanted: Record | None = None
    ) -> Buffer:
        while is_store and self._stores and self._in_flight() + length_bytes > self.in_flight_bytes:
            self._finish_oldest_store()
        self._require_room(length_bytes, wanted)
        return self.pool.take(round_to_blocks(length_bytes), block=False)

    def _in_flight(self) -> int:
        return sum(each.size_bytes for each in self._stores)

    def _give_up_prefetch(self, wanted: Record | None) -> bool:
        """Drop the prefetch that would be used last; false when there is none."""
        candidates = [each for each in self._loading if each is not wanted]
        if not candidates:
            return False
        # What was packed first is needed last, or nearly: a wrong guess costs one read.
        record = min(candidates, key=lambda each: each.position)
        load, record.load = record.load, None
        self._loading.discard(record)
        assert load is not None, "a record that is loading has a load"
        self._end_quietly(load.tickets)
        load.buffer.release()
        return True

    # Ends

    def settle(self, *, is_outside_operators: bool = False) -> None:
        """Take note of finished stores and of records that nobody needs any more."""
        with self.lock:
            for record, content in self._unfinished.take_finished(
                is_outside_operators=is_outside_operators
            ):
                self._keep_if_changed(record, content)
            while self._forgotten:
                self._bury(self._forgotten.popleft())
            while self._stores and all(each.done for each in self._stores[0].tickets):
                self._finish_oldest_store()
            if self._draining:
                still: list[tuple[tuple[Ticket, ...], tuple[Slot, ...]]] = []
                for tickets, slots in self._draining:
                    if all(each.done for each in tickets):
                        self.spools.give(slots)
                    else:
                        still.append((tickets, slots))
                self._draining = still

    def move(self, buffer: Buffer, slots: Sequence[Slot], *, is_write: bool) -> None:
        """Write a buffer to slots, or read it back, and wait for it."""
        for ticket in self._submit(buffer, slots, is_write=is_write):
            ticket.wait()

    def wait_until_idle(self) -> None:
        """Return when no store is under way any more."""
        with self.lock:
            while self._stores:
                self._finish_oldest_store()
            self.settle()

    def close(self) -> None:
        """Give everything back: disk space, buffers, the engines' threads."""
        with self.lock:
            _close_all(self.reader, self.writer, self.spools, self.pool)

    def _finish_oldest_store(self) -> None:
        store = self._stores.popleft()
        record = store.record()
        try:
            for ticket in store.tickets:
                ticket.wait()
        except CancelledError:  # the record is gone; a piece of it may still be on its way
            self._end_quietly(store.tickets)
            self.spools.give(store.slots)
            return
        except StorageError as error:
            self._note_failure(store, record, error)
            return
        written_bytes = sum(slot.length_bytes for slot in store.slots)
        self.counts.written_bytes += written_bytes
        if self.wear is not None:
            self.wear.note_written(written_bytes)
        if record is None:
            self.spools.give(store.slots)
            return
        record.move_to(State.STORED)
        record.buffer, record.stores = None, ()

    def _note_failure(self, store: _Store, record: Record | None, error: StorageError) -> None:
        """A write failed: its bytes are still in memory, and stay there.

        The slot may be used again only if the disk was full. After any other error it may be bad.
        """
        self._end_quietly(store.tickets)
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if is_full:
            self.spools.give(store.slots)
        else:
            self._quarantined_bytes += sum(slot.length_bytes for slot in store.slots)
        self._failures += 1
        self.counts.refused_stores += 1
        if record is not None:
            record.slots, record.stores = (), ()
            record.move_to(State.KEPT)
        if self.raises_when_full:
            raise error
        error.__traceback__ = None  # its frames hold the record, and through it the memory
        if self.refusal is None and (is_full or self._failures >= TOLERATED_FAILURES):
            self._refuse(str(error).splitlines()[0])

    def _end_quietly(self, tickets: Sequence[Ticket]) -> None:
        """Return when none of the tickets touches its memory any more, whatever became of them."""
        for ticket in tickets:
            if not self._cancel(ticket):
                try:
                    ticket.wait()
                except (StorageError, CancelledError):
                    continue  # nobody wants these bytes any more

    def _cancel(self, ticket: Ticket) -> bool:
        lane = self.writer if ticket.action == "write" else self.reader
        return lane.cancel(ticket)

    def _forget(self, record: Record) -> None:
        loads = () if record.load is None else record.load.tickets
        counted_bytes = record.size_bytes if record.is_counted else 0
        self._forgotten.append(
            _Remains(
                record.state,
                record.key,
                record.slots,
                record.stores,
                loads,
                counted_bytes,
                record.original,
            )
        )

    def _bury(self, remains: _Remains) -> None:
        self._saved_bytes -= remains.key.length_bytes
        if remains.counted_bytes:
            self._kept_bytes -= remains.counted_bytes
            record_kept(-remains.counted_bytes, WHY)
        if remains.original.is_alive:
            self._note_living(remains)
        if remains.state is State.STORING:
            for ticket in remains.stores:
                self._cancel(ticket)  # its slots come back with the store
        elif remains.slots:
            for ticket in remains.loads:
                self._cancel(ticket)
            self._draining.append((remains.loads, remains.slots))

    def _note_living(self, remains: _Remains) -> None:
        self._living[remains.key.storage] = remains.original
        if len(self._living) > self._living_limit:
            self._living = {at: each for at, each in self._living.items() if each.is_alive}
            self._living_limit = max(SMALLEST_LIVING_LIMIT, 2 * len(self._living))

    def _keep_if_changed(self, record: Record, content: torch.Tensor) -> None:
        """Keep what its operator filled after it was saved: the copy on disk is not the tensor."""
        if record.kept is None and self._copier.sum_only(content) != record.content_sum:
            self._require_room(record.size_bytes)
            record.kept = content
            self._count_kept(record)

    def _count_kept(self, record: Record) -> None:
        record.is_counted = True
        self._kept_bytes += record.size_bytes
        record_kept(record.size_bytes, WHY)
        self.counts.kept += 1
        self.counts.kept_bytes += record.size_bytes
        self._note_live()

    def _submit(
        self,
        buffer: Buffer,
        slots: Sequence[Slot],
        *,
        is_write: bool,
        priority: Priority = Priority.WRITE,
    ) -> tuple[Ticket, ...]:
        tickets: list[Ticket] = []
        position = 0
        for slot in slots:
            piece = buffer.memory[position : position + slot.length_bytes]
            move = self.writer.write if is_write else self.reader.read
            tickets.append(move(slot.file, slot.offset_bytes, piece, priority=priority, why=WHY))
            position += slot.length_bytes
        return tuple(tickets)


def _close_all(
    reader: StorageEngine, writer: StorageEngine, spools: SpoolSet, pool: BufferPool
) -> None:
    reader.close()
    writer.close()
    spools.close()
    pool.close()


def _as_rows(flat: torch.Tensor, row: Sequence[int]) -> torch.Tensor:
    """The numbers of a storage in rows as its first tensor has them, where they divide evenly."""
    length = row[0] if len(row) else 1
    return flat.view(-1, length) if length > 1 and flat.numel() % length == 0 else flat
