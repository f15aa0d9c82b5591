"""Moves records out of memory and back, within a budget, and never loses one.

Nothing here runs in a thread of its own: the storage engine works in the background, and what it has
finished is taken note of at the next event (a tensor packed or unpacked), which is also the first
time that anybody could use the room. The rules:

- memory is given up only after every byte has been written;
- live bytes (kept, being written, brought back) never exceed the budget: a store waits for earlier
  ones, a load takes the place of what was read or held ahead of its use, and what cannot fit is an
  error before it is allocated;
- buffers that are mapped and free count too: together with what is live they stay within the budget,
  and there are never more of them than a window of reads or writes can use;
- a slot is used again only when nothing reads or writes it any more.
"""

from __future__ import annotations

import collections
import functools
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import NoReturn

import torch

from shorthaul.errors import OffloadBudgetError
from shorthaul.interrupts import PatientLock
from shorthaul.meter import record_kept
from shorthaul.offload.codecs.compression import Codec
from shorthaul.offload.device.copies import DeviceCopier
from shorthaul.offload.drive.drives import Drives
from shorthaul.offload.drive.spool import Slot, SpoolSet, round_to_blocks
from shorthaul.offload.saved.counts import Counts
from shorthaul.offload.saved.identity import StorageKey, StorageReference, bytes_of_range
from shorthaul.offload.saved.late_writes import UnfinishedTensors
from shorthaul.offload.saved.living_storages import LivingStorages
from shorthaul.offload.saved.record import Farewell, Holdings, Record, State
from shorthaul.offload.store.device_queue import DeviceLane
from shorthaul.offload.store.disk_queues import WHY, ReadLane, WriteLane, end_quietly, lost, submit
from shorthaul.offload.store.forks import watch_forks
from shorthaul.offload.store.payload import Payload, Payloads
from shorthaul.storage.buffer_pool import Buffer, BufferPool, choose_class_bytes
from shorthaul.storage.engine import Priority, StorageEngine, Ticket

# How long to wait for memory that nobody is known to need before the budget is called too small.
PATIENCE_ROUNDS, PATIENCE_SECONDS = 50, 0.004
# Records read ahead at most, however small they are: each use looks through those on their way.
LONGEST_READ_AHEAD = 64


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
        packed_limit_bytes: int = 0,
        wear: Drives | None = None,
        copier: DeviceCopier | None = None,
    ) -> None:
        self.pool, self.spools = pool, spools
        self.budget_bytes = budget_bytes
        self.in_flight_bytes, self.prefetch_bytes = in_flight_bytes, prefetch_bytes
        self.has_checksums, self.packed_limit_bytes = has_checksums, packed_limit_bytes
        # While it is held, interrupts wait: no step here leaves half of what it does.
        self.lock = PatientLock(is_reentrant=True)
        self.counts = Counts()
        self.payloads = Payloads(codec, self.counts)
        # Every event here asks what is done: nobody else has to be woken for it.
        reader.is_polled = writer.is_polled = True
        self.writes = WriteLane(
            writer, spools, self.counts, raises_when_full=raises_when_full, wear=wear
        )
        self.reads = ReadLane(reader, spools, self.counts)
        self.devices = None if copier is None else DeviceLane(copier, self.writes, self.payloads)
        self._records: dict[StorageKey, Farewell] = {}  # the last one of each range
        self._farewells: dict[int, Farewell] = {}  # of all records: nobody else keeps them
        self._held: set[weakref.ref[Record]] = set()
        # Appended to from wherever a record dies, perhaps inside this class: no lock, no Python.
        self._forgotten: collections.deque[Farewell] = collections.deque()
        self._living = LivingStorages()
        self._unfinished = UnfinishedTensors()
        self._recomputed: dict[int, tuple[StorageReference, int]] = {}
        self._kept_bytes = 0
        self._packed_bytes = 0
        self._saved_bytes = 0
        self._closing = weakref.finalize(self, _close_all, copier, reader, writer, spools, pool)
        watch_forks(self)

    # What is live

    @property
    def live_bytes(self) -> int:
        """Activation bytes in memory on account of this store: kept, in flight, brought back."""
        return self._kept_bytes + self.pool.in_use_bytes

    @property
    def used_slots_bytes(self) -> int:
        """Bytes of disk in use, without those that failed and are not used again."""
        return self.spools.used_bytes - self.writes.quarantined_bytes

    @property
    def refusal(self) -> str | None:
        """Why the disk takes no more, once it does not."""
        return self.writes.refusal

    def _note_live(self) -> None:
        """Count the peak, and unmap free buffers that the rules do not allow."""
        in_use_bytes, counts = self.pool.in_use_bytes, self.counts
        counts.peak_live_bytes = max(counts.peak_live_bytes, self._kept_bytes + in_use_bytes)
        allowed_bytes = self._may_be_mapped(in_use_bytes)
        if self.pool.mapped_bytes > allowed_bytes:
            self.pool.trim(allowed_bytes)
        mapped_bytes = self._kept_bytes + self.pool.mapped_bytes
        counts.peak_mapped_bytes = max(counts.peak_mapped_bytes, mapped_bytes)

    def _may_be_mapped(self, in_use_bytes: int) -> int:
        """Bytes of buffers, free ones included: what the budget leaves, or one window's free ones."""
        if self.budget_bytes is None:
            return in_use_bytes + max(self.in_flight_bytes, self.prefetch_bytes)
        return max(in_use_bytes, self.budget_bytes - self._kept_bytes)

    # Packing

    def find(self, tensor: torch.Tensor, key: StorageKey) -> Record | None:
        """The record of these bytes, if they are already saved.

        Not every view shares its storage's version counter (`unsafe_chunk`, as in GRU cells, and
        `.data` do not), so a version alone does not prove that the bytes are those that were saved.
        Their sum does: it is read at memory speed, and only when something is saved again.
        """
        farewell = self._records.get(key)
        record = None if farewell is None else farewell()
        if record is None or record.kept is not None:
            return record
        if record.saved is not None:  # on a GPU the host would have to wait for a sum
            return record if record.has_owner_of(tensor) else None
        is_same = self.payloads.sum_of(bytes_of_range(tensor, key)) == record.content_sum
        return record if is_same else None

    def lives_anyway(self, storage: int) -> bool:
        """Whether a storage outlived the graph that saved it before: a buffer, a constant, data."""
        return storage in self._living

    def why_out_of_reach(self, tensor: torch.Tensor) -> str | None:
        """Why the bytes of a tensor cannot be read here; `None` when they can."""
        if tensor.is_cpu or (self.devices is not None and self.devices.takes(tensor)):
            return None
        return f"on {tensor.device.type}"

    def keep(self, tensor: torch.Tensor, key: StorageKey, *, scope: str, position: int) -> Record:
        """Save the bytes by keeping their memory."""
        with self.lock:
            self.settle()
            self._require_room(key.length_bytes)
            record = self._make_record(tensor, key, State.KEPT, scope, position)
            record.kept = bytes_of_range(tensor, key)
            self._count_kept(record)
            if self.budget_bytes is not None and not tensor.requires_grad:
                self._unfinished.watch(record, record.kept)  # until then it must not leave
            return record

    def offload(
        self, tensor: torch.Tensor, key: StorageKey, *, scope: str, position: int
    ) -> Record:
        """Save the bytes on disk; they stay in memory while they are being written.

        Where the disk takes no more they are kept, unless that would exceed the budget. What a codec
        made smaller may stay in memory packed, up to a limit of its own.
        """
        with self.lock:
            self.settle()
            if self.devices is not None and self.devices.takes(tensor):
                return self._offload_from(self.devices, tensor, key, scope, position)
            payload = self.payloads.make(tensor, key)
            length_bytes = payload.length_bytes
            if payload.codec is not None and self._can_stay_packed(length_bytes):
                return self._keep_packed(tensor, key, payload, scope, position)
            slots = self.writes.take_slots(length_bytes)
            if slots is None:
                return self.keep(tensor, key, scope=scope, position=position)
            try:
                buffer = self._take_buffer(length_bytes, is_store=True)
            except BaseException:
                self.spools.give(slots)
                raise
            record = self._make_record(tensor, key, State.STORING, scope, position)
            self.payloads.fill(record, buffer, payload, tensor)
            self.writes.start(record, buffer, slots)
            if not tensor.requires_grad:
                self._unfinished.watch(record, bytes_of_range(tensor, key))
            self.counts.offloaded += 1
            self.counts.offloaded_bytes += key.length_bytes
            return record

    def _offload_from(
        self, devices: DeviceLane, tensor: torch.Tensor, key: StorageKey, scope: str, position: int
    ) -> Record:
        """Save a tensor on a GPU: it leaves as it is, and is summed and written when it is here.

        One that needs no gradient is kept: its operator may still fill it (see `unfinished`).
        """
        slots = self.writes.take_slots(key.length_bytes) if tensor.requires_grad else None
        if slots is None:
            return self.keep(tensor, key, scope=scope, position=position)
        try:
            buffer = self._take_buffer(key.length_bytes, is_store=True)
        except BaseException:
            self.spools.give(slots)
            raise
        record = self._make_record(tensor, key, State.STORING, scope, position)
        devices.start(record, buffer, slots, bytes_of_range(tensor, key), tensor)
        self.counts.offloaded += 1
        self.counts.offloaded_bytes += key.length_bytes
        return record

    def _can_stay_packed(self, length_bytes: int) -> bool:
        is_within_limit = self._packed_bytes + length_bytes <= self.packed_limit_bytes
        return is_within_limit and self._has_room(length_bytes)

    def _keep_packed(
        self, tensor: torch.Tensor, key: StorageKey, payload: Payload, scope: str, position: int
    ) -> Record:
        buffer = self._take_buffer(payload.length_bytes, is_store=False)
        record = self._make_record(tensor, key, State.KEPT, scope, position)
        self.payloads.fill(record, buffer, payload, tensor)
        record.holdings.packed_bytes = record.payload_bytes
        self._packed_bytes += record.payload_bytes
        self.counts.packed += 1
        self.counts.packed_bytes += record.payload_bytes
        if not tensor.requires_grad:
            self._unfinished.watch(record, bytes_of_range(tensor, key))
        return record

    def _make_record(
        self, tensor: torch.Tensor, key: StorageKey, state: State, scope: str, position: int
    ) -> Record:
        label = _describe(tensor.dtype, tensor.shape)
        holdings = Holdings(key, StorageReference(tensor.untyped_storage()), state)
        record = Record(label, scope, position, holdings)
        farewell = Farewell(record, self._forgotten.append)
        farewell.holdings = holdings
        self._farewells[id(farewell)] = self._records[key] = farewell
        self._saved_bytes += key.length_bytes
        self.counts.peak_saved_bytes = max(self.counts.peak_saved_bytes, self._saved_bytes)
        return record

    def note_recomputed(self, tensor: torch.Tensor) -> None:
        """Count a tensor that recomputing made again; others own it, and it counts while it lives."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._recomputed:
            return
        with self.lock:
            self.settle()
            self._require_room(storage.nbytes())
            self._recomputed[storage._cdata] = StorageReference(storage), storage.nbytes()
            self._change_kept(storage.nbytes())
            self._note_live()

    # Unpacking

    def restore(self, record: Record) -> tuple[torch.UntypedStorage, int]:
        """A storage that holds the record's bytes, and where in it they start."""
        with self.lock:
            self.settle(is_outside_operators=True)
            if record.kept is not None:
                return record.kept.untyped_storage(), record.key.start_bytes
            restored = record.holdings.restored
            storage = None if restored is None else restored.revive(record.size_bytes)
            if storage is not None:
                if self.devices is not None:
                    self.devices.use_again(record, storage)
                self._hold(record, storage)
                return storage, 0
            buffer = record.buffer
            if buffer is None or record.device is not None:
                original = record.find_original()
                if original is not None:
                    self.counts.found_alive += 1
                    return original, record.key.start_bytes
            storage = self._finish_load(record) if buffer is None else self._forward(record, buffer)
            record.holdings.restored = StorageReference(storage)
            self._hold(record, storage)
            return storage, 0

    def prefetch(self, records: Iterable[Record]) -> None:
        """Start bringing records back, the first one first, as far as window and budget allow.

        Whoever asks has settled just before.
        """
        with self.lock:
            waiting, waiting_bytes = len(self.reads.loading), self.reads.loading_bytes
            for record in records:
                if waiting >= LONGEST_READ_AHEAD:
                    return
                if not self._has_to_be_read(record):
                    continue
                is_over_window = waiting_bytes + record.size_bytes > self.prefetch_bytes
                if (waiting_bytes and is_over_window) or not self._has_room(record.size_bytes):
                    return
                self._start_load(record, Priority.PREFETCH)
                waiting, waiting_bytes = waiting + 1, waiting_bytes + record.size_bytes
                self.counts.prefetched += 1

    def _has_to_be_read(self, record: Record) -> bool:
        """Whether the bytes are on disk alone, and not on their way yet."""
        held = record.holdings
        return (
            held.state is State.STORED
            and record.load is None
            and (held.restored is None or not held.restored.is_alive)
            and not held.original.is_alive
        )

    def _hold(self, record: Record, storage: torch.UntypedStorage) -> None:
        """Keep what came back while other nodes have yet to ask for it, within the read window."""
        if record.waiting_handles <= 0:
            record.held = None
            self._held.discard(weakref.ref(record))
        elif record.held is None:
            held_bytes = sum(each.size_bytes for each in self._holders())
            if held_bytes + record.size_bytes <= self.prefetch_bytes:
                record.held = storage
                self._held.add(weakref.ref(record))

    def _holders(self) -> list[Record]:
        """The records that hold what came back."""
        found = [(each, each()) for each in self._held]
        self._held.difference_update([each for each, record in found if record is None])
        return [record for _, record in found if record is not None]

    def _forward(self, record: Record, buffer: Buffer) -> torch.UntypedStorage:
        """Hand out the buffer that is being written; a store that has not begun is called off."""
        if self.devices is not None:
            self.devices.finish(record)
        if record.state is State.STORING:
            self.counts.forwarded += 1
            self.counts.forwarded_bytes += record.size_bytes
            self.writes.withdraw(record)
        return self._open(record, buffer)

    def _start_load(self, record: Record, priority: Priority) -> None:
        buffer = self._take_buffer(record.payload_bytes, is_store=False, wanted=record)
        self.reads.start(record, buffer, priority)

    def _finish_load(self, record: Record) -> torch.UntypedStorage:
        if record.load is None:
            self.counts.demand_reads += 1
            self._start_load(record, Priority.DEMAND)
        buffer = self.reads.finish(record)
        if self.has_checksums and not self.payloads.is_intact(record, buffer):
            raise lost(record, "its checksum is not the one it was written with")
        return self._open(record, buffer)

    def _open(self, record: Record, buffer: Buffer) -> torch.UntypedStorage:
        if self.devices is not None and record.device is not None:
            return self.devices.bring_back(record, buffer)

        take = functools.partial(self._take_buffer, is_store=False, wanted=record)
        return self.payloads.open(record, buffer, take)

    # Room

    def _has_room(self, length_bytes: int) -> bool:
        if self.budget_bytes is None:
            return True
        needed_bytes = choose_class_bytes(round_to_blocks(length_bytes))
        return self.live_bytes + needed_bytes <= self.budget_bytes

    def _require_room(self, length_bytes: int, wanted: Record | None = None) -> None:
        """Wait for stores, then give up what is there ahead of its use, until it fits the budget."""
        patience = PATIENCE_ROUNDS
        while not self._has_room(length_bytes):
            if self._finish_oldest():
                continue
            if not (self.reads.give_up(wanted) or self._let_go(wanted) or self._make_leave(wanted)):
                if patience == 0:
                    self._raise_no_room(length_bytes)
                # A worker of the engine, or an operator in another thread, may let go of memory a
                # moment after it is done with it.
                patience -= 1
                time.sleep(PATIENCE_SECONDS)
                self.reads.finish_drained()
                self._count_recomputed()

    def _let_go(self, wanted: Record | None) -> bool:
        """Stop holding one record for nodes that will ask for it again; they read it again."""
        record = next((each for each in self._holders() if each is not wanted), None)
        if record is None:
            return False
        record.held = None
        self._held.discard(weakref.ref(record))
        return True

    def _make_leave(self, wanted: Record | None) -> bool:
        """Write to disk what was kept so far and is needed last; false when nothing can leave.

        A plan keeps what fits beside the rest of the step that it was made for. In another step
        there may be more of the rest.
        """
        living = [each() for each in self._farewells.values()]
        kept = [
            each
            for each in living
            if each is not None and each is not wanted and self._can_leave(each)
        ]
        if not kept:
            return False
        # What was packed first is needed last; what a backward pass saved is needed soon.
        record = min(kept, key=lambda each: (each.position < 0, each.position))
        held = record.holdings
        slots = self.writes.take_slots(held.packed_bytes or record.size_bytes)
        if slots is None:
            return False
        if record.kept is None:
            assert record.buffer is not None, "what can leave is in memory"
            content = record.buffer.memory[: record.payload_bytes]
        else:
            content = record.kept.numpy()
            record.payload_bytes, record.codec = record.size_bytes, None
            record.checksum = record.content_sum = self.payloads.sum_of(record.kept)
        if self.writes.write_now(record, content, slots):
            record.kept = None
            self._packed_bytes -= held.packed_bytes
            self._change_kept(-held.counted_bytes)
            held.packed_bytes = held.counted_bytes = 0
            self.counts.kept_and_written += 1
        return True

    def _can_leave(self, record: Record) -> bool:
        """Whether its bytes are complete, lie in memory for its own sake, and on no disk yet."""
        if record.state is not State.KEPT or self._unfinished.watches(record):
            return False
        if record.kept is not None:
            return record.holdings.counted_bytes > 0 and record.kept.is_cpu
        restored = record.holdings.restored
        is_used = restored is not None and restored.is_alive
        return record.buffer is not None and record.arrival is None and not is_used

    def _raise_no_room(self, length_bytes: int) -> NoReturn:
        assert self.budget_bytes is not None, "without a budget there is always room"
        needed_bytes = self.live_bytes + choose_class_bytes(round_to_blocks(length_bytes))
        raise OffloadBudgetError(
            needed_bytes,
            self.budget_bytes,
            "by tensors that are in use",
            refusal=self.writes.why_closed(length_bytes),
        )

    def _take_buffer(
        self, length_bytes: int, *, is_store: bool, wanted: Record | None = None
    ) -> Buffer:
        while is_store and self._storing_bytes() + length_bytes > self.in_flight_bytes:
            if not self._finish_oldest():
                break
        self._require_room(length_bytes, wanted)
        whole_bytes = round_to_blocks(length_bytes)
        needed_bytes = self.pool.in_use_bytes + choose_class_bytes(whole_bytes)
        buffer = self.pool.take(
            whole_bytes, block=False, mapped_bytes=self._may_be_mapped(needed_bytes)
        )
        self._note_live()
        return buffer

    def _storing_bytes(self) -> int:
        """Bytes in buffers on their way to the disk."""
        leaving_bytes = 0 if self.devices is None else self.devices.leaving_bytes
        return self.writes.in_flight_bytes + leaving_bytes

    def _finish_oldest(self) -> bool:
        """Wait for the store that is furthest on its way; false when there is none."""
        if self.writes:
            self.writes.finish_oldest()
            return True
        return self.devices is not None and self.devices.finish_oldest()

    # Forks and ends

    def start_afresh(self) -> None:
        """In a forked child: what is under way is the parent's; what is in memory or on disk stays."""
        for farewell in self._farewells.values():
            farewell.holdings.start_afresh()
            record = farewell()
            if record is not None:
                record.load = None
        self.writes.start_afresh()
        self.reads.start_afresh()
        self.spools.start_afresh()

    def settle(self, *, is_outside_operators: bool = False) -> None:
        """Take note of finished stores and of records that nobody needs any more."""
        with self.lock:
            self._unfinished.finish(
                self._keep_if_changed, is_outside_operators=is_outside_operators
            )
            while self._forgotten:
                self._bury(self._forgotten.popleft())
            if self.devices is not None:
                self.devices.copier.settle()
            self.writes.finish_done()
            self.reads.finish_drained()
            if self._recomputed:
                self._count_recomputed()

    def move(self, buffer: Buffer, slots: Sequence[Slot], *, is_write: bool, why: str) -> None:
        """Write a buffer to slots, or read it back, and wait for it."""
        engine = self.writes.engine if is_write else self.reads.engine
        tickets: list[Ticket] = []
        try:
            submit(engine, buffer, slots, tickets, is_write=is_write, why=why)
            for ticket in tickets:
                ticket.wait()
        finally:
            end_quietly(engine, tuple(tickets))

    def wait_until_idle(self) -> None:
        """Return when no store is under way any more."""
        with self.lock:
            while self._finish_oldest():
                pass
            self.settle()

    def close(self) -> None:
        """Give everything back: disk space, buffers, the engines' threads."""
        with self.lock:
            self._closing()

    def _bury(self, farewell: Farewell) -> None:
        """Give back what a record held that nobody needs any more."""
        del self._farewells[id(farewell)]
        remains = farewell.holdings
        if self._records.get(remains.key) is farewell:
            del self._records[remains.key]
        self._saved_bytes -= remains.key.length_bytes
        self._packed_bytes -= remains.packed_bytes
        if remains.counted_bytes:
            self._change_kept(-remains.counted_bytes)
        if remains.original.is_alive:
            self._living.note(remains.key.storage, remains.original)
        if remains.state is State.STORING:
            for ticket in remains.stores:
                self.writes.engine.cancel(ticket)  # its slots come back with the store
        elif remains.slots:
            loading_bytes = remains.key.length_bytes if remains.loads else 0
            self.reads.drain(remains.loads, remains.slots, loading_bytes)

    def _keep_if_changed(self, record: Record, content: torch.Tensor) -> None:
        """Keep what its operator filled after it was saved: the copy on disk is not the tensor."""
        if record.kept is None and self.payloads.sum_of(content) != record.content_sum:
            self._require_room(record.size_bytes)
            record.kept = content
            self._count_kept(record)

    def _count_kept(self, record: Record) -> None:
        record.holdings.counted_bytes = record.size_bytes
        self._change_kept(record.size_bytes)
        self.counts.kept += 1
        self.counts.kept_bytes += record.size_bytes
        self._note_live()

    def _count_recomputed(self) -> None:
        """Stop counting recomputed tensors that are gone."""
        gone = [at for at, (reference, _) in self._recomputed.items() if not reference.is_alive]
        for storage in gone:
            self._change_kept(-self._recomputed.pop(storage)[1])

    def _change_kept(self, length_bytes: int) -> None:
        self._kept_bytes += length_bytes
        record_kept(length_bytes, WHY)


@functools.lru_cache(1024)
def _describe(dtype: torch.dtype, shape: torch.Size) -> str:
    """A tensor for people; there are few kinds of them in a model, and many tensors of each."""
    return f"{dtype} {tuple(shape)}".replace("torch.", "")


def _close_all(
    copier: DeviceCopier | None,
    reader: StorageEngine,
    writer: StorageEngine,
    spools: SpoolSet,
    pool: BufferPool,
) -> None:
    if copier is not None:
        copier.close()
    reader.close()
    writer.close()
    spools.close()
    pool.close()
