"""The context in which saved tensors leave memory; `sh.offload_activations` makes it."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from shorthaul.errors import InPlaceChangeError, SpoolFullError, StorageError
from shorthaul.host_memory import resident_bytes
from shorthaul.interrupts import deferred_interrupts
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.meter import DISK_TRIAL, read_peak_resident_bytes
from shorthaul.offload.drive.drives import Drives
from shorthaul.offload.drive.endurance import estimate_bytes_per_day
from shorthaul.offload.drive.spool import BLOCK_BYTES
from shorthaul.offload.policy import regions
from shorthaul.offload.policy.backward_order import BackwardOrder, ForwardPass, RegionCall
from shorthaul.offload.policy.packing_rule import AutomaticPacking
from shorthaul.offload.policy.policy import Policy, SavedTensor
from shorthaul.offload.policy.simulation import Disk
from shorthaul.offload.report import OffloadReport
from shorthaul.offload.saved.handing_out import note_handed_out
from shorthaul.offload.saved.identity import (
    StorageKey,
    VersionWitness,
    find_key,
    find_view,
    why_not_movable,
)
from shorthaul.offload.saved.module_names import find_scope
from shorthaul.offload.saved.record import Handle, Record
from shorthaul.offload.saved.step_state import StepState, gradient_error
from shorthaul.offload.store.disk_queues import Slots
from shorthaul.offload.store.store import ActivationStore

_MEASURED_BYTES = 64 * 2**20
_SMALLEST_MEASURED_BYTES = 2**17


class _Inside(threading.local):
    """The region that a thread is running."""

    def __init__(self) -> None:
        self.call: RegionCall | None = None


class ActivationOffload(contextlib.ContextDecorator):
    """Moves what autograd saves inside the block to disk, and back when backward needs it.

    Made by `sh.offload_activations`. It may be entered again, once per step or around all of them,
    and it keeps what it learned. Backward may run inside or after the block.
    """

    def __init__(
        self,
        store: ActivationStore,
        *,
        minimum_bytes: int,
        wear: Drives,
        choose_policy: Callable[[ActivationOffload], Policy],
        is_packing_automatic: bool = False,
    ) -> None:
        self.store, self.minimum_bytes, self.wear = store, minimum_bytes, wear
        self.policy = choose_policy(self)
        self.packing: AutomaticPacking | None = None
        if is_packing_automatic:
            is_limited = wear.endurance.daily_bytes is not None
            self.packing = AutomaticPacking(self.measure_disk, is_wear_limited=is_limited)
        self.last_pass: ForwardPass | None = None  # the last one whose backward pass is over
        self.last_pass_seconds = 0.0  # with what it waited for
        self.on_unwrap: list[Callable[[], None]] = []
        # Without the time spent waiting for the disk: plans are made from what the model itself takes.
        self._order = BackwardOrder(lambda: time.perf_counter() - store.counts.stall_seconds)
        self._inside = _Inside()
        self._hooks: list[Any] = []
        self._small_count = 0
        self._was_entered = False
        self._started = time.perf_counter()
        self._stall_seconds_before = 0.0  # at the end of the last pass
        self._gradient_error: float | None = None

    # The hooks

    def __enter__(self) -> ActivationOffload:
        if not self._was_entered:
            self._was_entered = True
            self.policy.prepare()
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        is_entered = False
        try:
            with deferred_interrupts:
                hooks.__enter__()
                self._hooks.append(hooks)
                regions.enter(self)
                is_entered = True
        except BaseException:
            if is_entered:  # then the block, and with it its end, will not be reached
                self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with deferred_interrupts:
            regions.leave(self)
            self._hooks.pop().__exit__(kind, error, trace)
            self.store.settle(is_outside_operators=True)

    @outside_graphs
    def _pack(self, tensor: torch.Tensor) -> object:
        try:
            is_small = tensor.nbytes < self.minimum_bytes
        except RuntimeError:  # sparse tensors have no size of their own
            is_small = True
        if not is_small:
            return self._pack_large(tensor)
        self._small_count += 1
        return _as_it_is(tensor)

    @outside_graphs
    def _unpack(self, packed: Any) -> torch.Tensor:
        kind = type(packed)
        if kind is Handle:
            return self._unpack_large(packed)
        tensor: torch.Tensor
        tensor, version = packed if kind is tuple else (packed, 0)
        if tensor._version != version:
            described = f"{tensor.type()} {list(tensor.shape)}"
            raise InPlaceChangeError(described, tensor._version, version)
        note_handed_out(tensor)
        return tensor

    def _pack_large(self, tensor: torch.Tensor) -> object:
        stay_alone_after_fork()
        store = self.store
        reason = why_not_movable(tensor) or store.why_out_of_reach(tensor)
        key = None if reason else find_key(tensor)
        if key is not None and key.length_bytes < self.minimum_bytes:
            reason = "small storage"
        with store.lock:
            if key is not None and reason is None and store.lives_anyway(key.storage):
                reason = "lives anyway"
            if reason is not None or key is None:
                store.counts.left_alone[reason or ""] += 1
                return _as_it_is(tensor)
            record = store.find(tensor, key)
            if record is None:
                record = self._save(tensor, key)
            else:
                store.counts.deduplicated += 1
                store.counts.deduplicated_bytes += tensor.nbytes
                self._order.note_saved_again(record, self._inside.call)
            return Handle(record, find_view(tensor, key), VersionWitness(tensor))

    def _save(self, tensor: torch.Tensor, key: StorageKey) -> Record:
        scope = find_scope(sys._getframe(2))
        if torch._C._current_graph_task_id() != -1:
            # Saved while a backward pass runs, by recomputation or for a second derivative: needed
            # at once, or rarely. It is not part of the order that passes are learned by.
            return self.store.keep(tensor, key, scope=scope, position=-1)
        self._order.begin_pass_if_needed()
        if self._inside.call is None:
            self._order.forget_dropped()
        position = self._order.current.next_position
        place = self._order.current.place_of(key.storage, self._inside.call)
        saved = SavedTensor(
            key.length_bytes, str(tensor.dtype), tuple(tensor.shape), scope, position, place
        )
        if self.packing is not None and self.packing.wants_sample:
            self.packing.note_saved(tensor)
        save = self.store.offload if self.policy.should_offload(saved) else self.store.keep
        record = save(tensor, key, scope=scope, position=position)
        self._order.note_packed(record, place)
        return record

    def _unpack_large(self, handle: Handle) -> torch.Tensor:
        stay_alone_after_fork()
        handle.require_unchanged()
        store = self.store
        with store.lock:
            handle.note_use()
            storage, start_bytes = store.restore(handle.record)
            tensor = handle.witness.share_with(handle.view.build(storage, start_bytes))
            store.prefetch(self._order.note_unpacked(handle.record))
            finished, self._order.last_over = self._order.last_over, None
            if finished is not None:
                self._learn(finished)
        note_handed_out(tensor)
        return tensor

    def _learn(self, finished: ForwardPass) -> None:
        """A forward pass and its backward pass are over."""
        self.last_pass = finished
        self.policy.learn(finished)
        stalled_seconds = self.store.counts.stall_seconds - self._stall_seconds_before
        own_seconds = max(last for _, last in finished.used_at.values()) - finished.packed_at[0]
        self.last_pass_seconds = own_seconds + stalled_seconds
        if self.packing is not None:
            self.store.payloads.codec = self.packing.learn(
                step_seconds=self.last_pass_seconds, stall_seconds=stalled_seconds
            )
        self._stall_seconds_before = self.store.counts.stall_seconds

    # Regions

    def run_region(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a region's function: as it is, or to be computed again, as the plan has it.

        Args:
            function: The region.
            args: Its positional arguments.
            kwargs: Its arguments by name.
        """
        is_backward = torch._C._current_graph_task_id() != -1
        if is_backward or self._inside.call is not None:
            return function(*args, **kwargs)
        leaves, structure = pytree.tree_flatten((args, kwargs))
        inputs = _storages_of(leaves)
        counts = self.store.counts
        with self.store.lock:
            call = self._order.enter_region(inputs)
            is_recomputed = call.index in self.policy.recomputed
        self._inside.call = call
        try:
            if not is_recomputed:
                return function(*args, **kwargs)
            counts.recomputed_regions += 1
            return checkpoint(self._counting(function, structure), *leaves, use_reentrant=False)
        finally:
            self._inside.call = None
            with self.store.lock:
                self._order.leave_region(call)

    def _counting(
        self, function: Callable[..., Any], structure: pytree.TreeSpec
    ) -> Callable[..., Any]:
        """The function with its arguments flat; what it saves in a backward pass is counted."""

        def run(*leaves: Any) -> Any:
            args, kwargs = pytree.tree_unflatten(leaves, structure)
            if torch._C._current_graph_task_id() == -1:
                return function(*args, **kwargs)
            inputs = _storages_of(leaves)  # counted where they were saved

            def note(tensor: torch.Tensor) -> None:
                is_own = why_not_movable(tensor) is None and tensor.nbytes >= self.minimum_bytes
                if is_own and tensor.untyped_storage()._cdata not in inputs:
                    self.store.note_recomputed(tensor)

            with regions.watch_recomputed(note):
                return function(*args, **kwargs)

        return run

    # What a user may ask

    def micro_batch(self, tag: object) -> None:
        """Say that what is saved from now on belongs to micro-batch `tag`."""
        with self.store.lock:
            self._order.mark(tag)

    def next_backward(self, tag: object) -> None:
        """Say that the backward pass of micro-batch `tag` comes next; its prefetch starts now."""
        with self.store.lock:
            hinted = self._order.hint(tag)
            self.store.settle()
            self.store.prefetch(hinted.upcoming(None) if hinted else ())

    def measure_disk(self) -> Disk | None:
        """What the scratch directory delivers now, by writing and reading some of it.

        `None` when budget, disk or daily limit have no room for that at the moment.
        """
        store = self.store
        with store.lock:
            store.wait_until_idle()
            room_bytes = _MEASURED_BYTES
            if store.budget_bytes is not None:
                room_bytes = min(room_bytes, (store.budget_bytes - store.live_bytes) // 2)
            left_bytes = self.wear.left_bytes
            if left_bytes is not None:  # a measurement should leave most of it for activations
                room_bytes = min(room_bytes, left_bytes // 16)
            try:
                return self._measure_disk_by(room_bytes // BLOCK_BYTES * BLOCK_BYTES)
            except StorageError:
                # Said to all when an activation meets with it: that decides what to do about it.
                if store.writes.raises_when_full:
                    raise
                return None

    def _measure_disk_by(self, length_bytes: int) -> Disk | None:
        """Write and read that many bytes, or as many as the disk has room for."""
        store = self.store
        slots: Slots = ()
        while not slots:
            if length_bytes < _SMALLEST_MEASURED_BYTES:
                return None
            try:
                slots = store.spools.take(length_bytes)
            except SpoolFullError:
                length_bytes = length_bytes // 2 // BLOCK_BYTES * BLOCK_BYTES
        with store.pool.take(length_bytes, block=False) as buffer:
            started = time.perf_counter()
            store.move(buffer, slots, is_write=True, why=DISK_TRIAL)
            written = time.perf_counter()
            store.move(buffer, slots, is_write=False, why=DISK_TRIAL)
            read = time.perf_counter()
        for slot in slots:
            self.wear.note_written(store.spools.place_of(slot), slot.length_bytes)
        store.spools.give(slots)
        return Disk(length_bytes / (written - started), length_bytes / (read - written))

    def measure_gradient_error(
        self, step: Callable[[], object], parameters: torch.nn.Module | Iterable[torch.Tensor]
    ) -> float:
        """What a lossy codec does to the gradients: `step` run exactly, then as it is.

        The norm of the difference of all gradients over the norm of the exact ones; the report shows
        it. Gradients and random state are as before afterwards.

        Args:
            step: Forward and backward, as a function without arguments.
            parameters: A module, or the tensors whose gradients are compared.
        """
        before = StepState(parameters)
        codec, packing = self.store.payloads.codec, self.packing
        gradients = []
        try:
            for used in (None, codec):
                self.store.payloads.codec, self.packing = used, None
                with self:
                    step()
                gradients.append(before.take_gradients())
                before.restore()
        finally:
            self.store.payloads.codec, self.packing = codec, packing
            before.restore()
        self._gradient_error = gradient_error(*gradients)
        return self._gradient_error

    def metrics(self) -> dict[str, float]:
        """A few plain numbers for a logger, cheap enough for every step."""
        with self.store.lock:
            counts = self.store.counts
            return {
                "shorthaul_live_bytes": self.store.live_bytes,
                "shorthaul_peak_live_bytes": counts.peak_live_bytes,
                "shorthaul_written_bytes": counts.written_bytes,
                "shorthaul_read_bytes": counts.read_bytes,
                "shorthaul_stall_seconds": counts.stall_seconds,
            }

    def report(self) -> OffloadReport:
        """What was done so far, and what it took."""
        with self.store.lock:
            self.store.settle()
            written = self.wear.save()  # of each drive
            elapsed = time.perf_counter() - self._started
            per_day = estimate_bytes_per_day(self.store.counts.written_bytes, elapsed)
            codec = self.store.payloads.codec
            return OffloadReport(
                counts=self.store.counts.copy(),
                live_bytes=self.store.live_bytes,
                disk_bytes=self.store.used_slots_bytes,
                small_count=self._small_count,
                minimum_bytes=self.minimum_bytes,
                refusal=self.store.writes.why_closed(self.minimum_bytes),
                policy=self.policy.name,
                explanation=self.policy.explain(),
                codec=None if codec is None else codec.name,
                packing=None if self.packing is None else self.packing.verdict.reason,
                gradient_error=self._gradient_error,
                drive=" and ".join(each.name for each in self.wear.devices),
                drive_written_bytes=sum(each.total_bytes for each in written),
                drive_days_left=self.wear.days_left(written, bytes_per_day=per_day),
                resident_bytes=resident_bytes(),
                peak_resident_bytes=read_peak_resident_bytes(),
            )

    def unwrap(self) -> None:
        """Take the hooks and marks of `sh.offload.wrap` off the model."""
        for undo in self.on_unwrap:
            undo()
        self.on_unwrap = []

    def close(self) -> None:
        """Give disk space, buffers and threads back now instead of when this is forgotten.

        Graphs that still wait for their backward pass can no longer run it.
        """
        self.store.close()
        self.wear.save()


def _storages_of(leaves: Iterable[Any]) -> set[int]:
    """The addresses of the storages that arguments lie in."""
    return {
        each.untyped_storage()._cdata
        for each in leaves
        if isinstance(each, torch.Tensor) and each.layout is torch.strided
    }


def _as_it_is(tensor: torch.Tensor) -> object:
    """What stands for a tensor that stays in memory.

    Its version goes along unless it is 0, the usual one: with hooks, autograd no longer checks it.
    The node that made it does not: if the tensor is the node's result, neither could ever be freed.
    """
    version = tensor._version
    if not tensor.is_leaf:
        tensor = tensor.detach()
    return (tensor, version) if version else tensor
