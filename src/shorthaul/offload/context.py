"""`sh.offload_activations`: the context in which saved tensors leave memory."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from shorthaul.errors import InPlaceChangeError
from shorthaul.offload.compression import Codec, choose_codec
from shorthaul.offload.endurance import (
    Endurance,
    WearLimit,
    WriteLedger,
    estimate_bytes_per_day,
    identify_device,
)
from shorthaul.offload.identity import VersionWitness, find_key, find_view, why_not_movable
from shorthaul.offload.policy import (
    OffloadAll,
    OffloadChosen,
    OffloadPlanned,
    OffloadPrefix,
    Policy,
    SavedTensor,
)
from shorthaul.offload.prefetch import BackwardOrder, ForwardPass
from shorthaul.offload.record import Handle, Record
from shorthaul.offload.report import OffloadReport
from shorthaul.offload.simulation import Disk
from shorthaul.offload.spool import BLOCK_BYTES, SpoolSet
from shorthaul.offload.store import ActivationStore
from shorthaul.settings import settings
from shorthaul.storage import BufferPool, StorageEngine, open_engine
from shorthaul.units import parse_bytes

DEFAULT_MINIMUM_BYTES = 2**20
# Writes need room for what a layer saves at once; reads only have to run ahead of the use, and at
# 2 GB/s this is 30 ms of it.
DEFAULT_IN_FLIGHT_BYTES = 128 * 2**20
DEFAULT_PREFETCH_BYTES = 64 * 2**20
_MEASURED_BYTES = 64 * 2**20
_SMALLEST_MEASURED_BYTES = 2**20

Directories = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class ActivationOffload(contextlib.ContextDecorator):
    """Moves what autograd saves inside the block to disk, and back when backward needs it.

    Made by `sh.offload_activations`. It may be entered again, once per step or around all of them,
    and it keeps what it learned. Backward may run inside or after the block.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        *,
        budget_bytes: int | None,
        policy: str | Callable[[SavedTensor], bool],
        minimum_bytes: int,
        in_flight_bytes: int,
        prefetch_bytes: int,
        has_checksums: bool,
        raises_when_full: bool,
        spread: str,
        allow_memory: bool,
        codec: Codec | None,
        wear: WearLimit,
        open_lane: Callable[[], StorageEngine],
    ) -> None:
        self.minimum_bytes = minimum_bytes
        pool_bytes = budget_bytes
        if pool_bytes is None:
            pool_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.store = ActivationStore(
            open_lane(),
            open_lane(),
            BufferPool(pool_bytes, why="activation buffers"),
            SpoolSet(directories, spread=spread, allow_memory=allow_memory),
            budget_bytes=budget_bytes,
            in_flight_bytes=in_flight_bytes,
            prefetch_bytes=prefetch_bytes,
            has_checksums=has_checksums,
            raises_when_full=raises_when_full,
            codec=codec,
            wear=wear,
        )
        self.wear = wear
        self._started = time.perf_counter()
        self.policy = self._choose_policy(policy)
        self._order = BackwardOrder()
        self._hooks: list[Any] = []
        self._small_count = 0
        self._was_entered = False
        self.last_pass: ForwardPass | None = None  # the last one whose backward pass is over
        self.on_unwrap: Sequence[Any] = ()
        self._stall_seconds = 0.0

    def _choose_policy(self, policy: str | Callable[[SavedTensor], bool]) -> Policy:
        if callable(policy):
            return OffloadChosen(policy)
        if policy == "all" or (policy == "auto" and self.store.budget_bytes is None):
            return OffloadAll()
        if policy == "auto" and self.store.budget_bytes is not None:
            return OffloadPlanned(
                budget_bytes=self.store.budget_bytes,
                in_flight_bytes=self.store.in_flight_bytes,
                prefetch_bytes=self.store.prefetch_bytes,
                measure_disk=self.measure_disk,
                endurance_bytes_per_step=lambda: self.wear.left_bytes,
            )
        if policy == "ssdtrain":
            return OffloadPrefix()
        raise ValueError(f"policy must be 'auto', 'all', 'ssdtrain' or a callable, got {policy!r}")

    # The hooks

    def __enter__(self) -> ActivationOffload:
        if not self._was_entered:
            self._was_entered = True
            self.policy.prepare()
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        hooks.__enter__()
        self._hooks.append(hooks)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hooks.pop().__exit__(kind, error, trace)
        self.store.settle(is_outside_operators=True)

    def _pack(self, tensor: torch.Tensor) -> object:
        try:
            is_small = tensor.nbytes < self.minimum_bytes
        except RuntimeError:  # sparse tensors have no size of their own
            is_small = True
        if is_small:
            self._small_count += 1
            return _as_it_is(tensor)
        return self._pack_large(tensor)

    def _unpack(self, packed: Any) -> torch.Tensor:
        kind = type(packed)
        if kind is Handle:
            return self._unpack_large(packed)
        tensor: torch.Tensor
        tensor, version = packed if kind is tuple else (packed, 0)
        if tensor._version != version:
            described = f"{tensor.type()} {list(tensor.shape)}"
            raise InPlaceChangeError(described, tensor._version, version)
        return tensor

    def _pack_large(self, tensor: torch.Tensor) -> object:
        store = self.store
        reason = why_not_movable(tensor)
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
            return Handle(record, find_view(tensor, key), VersionWitness(tensor))

    def _save(self, tensor: torch.Tensor, key: Any) -> Record:
        scope = find_scope(sys._getframe(2))
        if torch._C._current_graph_task_id() != -1:
            # Saved while a backward pass runs, by recomputation or for a second derivative: needed
            # at once, or rarely. It is not part of the order that passes are learned by.
            return self.store.keep(tensor, key, scope=scope, position=-1)
        self._order.begin_pass_if_needed()
        position = self._order.current.next_position
        saved = SavedTensor(
            key.length_bytes, str(tensor.dtype), tuple(tensor.shape), scope, position
        )
        place = self.store.offload if self.policy.should_offload(saved) else self.store.keep
        record = place(tensor, key, scope=scope, position=position)
        self._order.note_packed(record)
        return record

    def _unpack_large(self, handle: Handle) -> torch.Tensor:
        handle.require_unchanged()
        store = self.store
        with store.lock:
            started = time.perf_counter()
            storage, start_bytes = store.restore(handle.record)
            self._stall_seconds += time.perf_counter() - started
            tensor = handle.view.build(storage, start_bytes)
            store.prefetch(self._order.note_unpacked(handle.record))
            finished, self._order.last_over = self._order.last_over, None
            if finished is not None:
                self.last_pass = finished
                self.policy.learn(finished)
        return tensor

    # What a user may ask

    def micro_batch(self, tag: object) -> None:
        """Say that what is saved from now on belongs to micro-batch `tag`."""
        with self.store.lock:
            self._order.mark(tag)

    def next_backward(self, tag: object) -> None:
        """Say that the backward pass of micro-batch `tag` comes next; its prefetch starts now."""
        with self.store.lock:
            hinted = self._order.hint(tag)
            self.store.prefetch(hinted.upcoming(None) if hinted else ())

    def measure_disk(self) -> Disk | None:
        """What the scratch directory delivers now, by writing and reading some of it.

        `None` when the budget has no room for that at the moment.
        """
        store = self.store
        with store.lock:
            store.wait_until_idle()
            room_bytes = _MEASURED_BYTES
            if store.budget_bytes is not None:
                room_bytes = min(room_bytes, (store.budget_bytes - store.live_bytes) // 2)
            if room_bytes < _SMALLEST_MEASURED_BYTES:
                return None
            length_bytes = room_bytes // BLOCK_BYTES * BLOCK_BYTES
            slots = store.spools.take(length_bytes)
            with store.pool.take(length_bytes, block=False) as buffer:
                started = time.perf_counter()
                store.move(buffer, slots, is_write=True)
                written = time.perf_counter()
                store.move(buffer, slots, is_write=False)
                read = time.perf_counter()
            store.spools.give(slots)
        return Disk(length_bytes / (written - started), length_bytes / (read - written))

    def report(self) -> OffloadReport:
        """What was done so far, and what it took."""
        with self.store.lock:
            self.store.settle()
            written = self.wear.save()
            elapsed = time.perf_counter() - self._started
            per_day = estimate_bytes_per_day(self.store.counts.written_bytes, elapsed)
            return OffloadReport(
                counts=self.store.counts,
                live_bytes=self.store.live_bytes,
                disk_bytes=self.store.used_slots_bytes,
                small_count=self._small_count,
                minimum_bytes=self.minimum_bytes,
                stall_seconds=self._stall_seconds,
                refusal=self.store.refusal,
                policy=self.policy.name,
                explanation=self.policy.explain(),
                drive=self.wear.ledger.device.name,
                drive_written_bytes=written.total_bytes,
                drive_days_left=self.wear.endurance.days_left(
                    bytes_per_day=per_day, written_bytes=written.total_bytes
                ),
            )

    def unwrap(self) -> None:
        """Take the hooks of `sh.offload.wrap` off the model."""
        for hook in self.on_unwrap:
            hook.remove()
        self.on_unwrap = ()

    def close(self) -> None:
        """Give disk space, buffers and threads back now instead of when this is forgotten.

        Graphs that still wait for their backward pass can no longer run it.
        """
        self.store.close()
        self.wear.save()


def offload_activations(
    directory: Directories | None = None,
    *,
    budget: int | str | None = None,
    policy: str | Callable[[SavedTensor], bool] = "auto",
    minimum_bytes: int | str = DEFAULT_MINIMUM_BYTES,
    in_flight: int | str | None = None,
    prefetch: int | str | None = None,
    compress: str | None = None,
    checksum: bool = True,
    on_full: str = "keep",
    endurance: Mapping[str, Any] | Endurance | None = None,
    spread: str = "turns",
    allow_memory: bool = False,
    engine: str | Callable[[], StorageEngine] | None = None,
) -> ActivationOffload:
    """Move what autograd saves to disk during forward, and back in time for backward.

    >>> import torch, shorthaul as sh
    >>> layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    >>> with sh.offload_activations(minimum_bytes="64KiB") as offload:
    ...     layers(torch.randn(256, 512)).square().mean().backward()
    >>> offload.report().counts.offloaded
    5

    Gradients are bit-equal to those without it. `directory` is a directory on a disk, or several;
    by default the scratch setting. `budget` bounds the activation bytes in memory. `minimum_bytes`
    is the size below which tensors stay. `in_flight` and `prefetch` bound what is being written and
    what is read ahead. `compress` names a codec: "mask", "lz4" and "zstd" are exact, "int8" and "fp8"
    are not. `checksum` verifies what comes back. `endurance` describes the drive and limits its
    wear: `{"tbw": "600TB", "daily": "2TB"}`. `on_full` says what a full disk means: "keep" in memory, or "raise".
    `spread` uses several directories in "turns" or "stripes". `allow_memory` permits a directory
    that is itself memory. `engine` names a storage engine, or makes one.
    """
    if on_full not in ("keep", "raise"):
        raise ValueError(f"on_full must be 'keep' or 'raise', got {on_full!r}")
    if directory is None:
        directory = settings.scratch_directory
    given = [directory] if isinstance(directory, str | os.PathLike) else list(directory)
    budget_bytes = None if budget is None else parse_bytes(budget)
    in_flight_bytes = parse_bytes(DEFAULT_IN_FLIGHT_BYTES if in_flight is None else in_flight)
    prefetch_bytes = parse_bytes(DEFAULT_PREFETCH_BYTES if prefetch is None else prefetch)
    if budget_bytes is not None:
        in_flight_bytes = min(in_flight_bytes, budget_bytes // 4)
        prefetch_bytes = min(prefetch_bytes, budget_bytes // 4)
    return ActivationOffload(
        [Path(each) for each in given],
        budget_bytes=budget_bytes,
        policy=policy,
        minimum_bytes=parse_bytes(minimum_bytes),
        in_flight_bytes=in_flight_bytes,
        prefetch_bytes=prefetch_bytes,
        has_checksums=checksum,
        raises_when_full=on_full == "raise",
        spread=spread,
        allow_memory=allow_memory,
        codec=None if compress is None else choose_codec(compress),
        wear=WearLimit(Endurance.parse(endurance), WriteLedger(identify_device(given[0]))),
        open_lane=engine if callable(engine) else lambda: open_engine(engine),
    )


def _as_it_is(tensor: torch.Tensor) -> object:
    """What stands for a tensor that stays in memory.

    Its version goes along unless it is 0, the usual one: with hooks, autograd no longer checks it.
    The node that made it does not: if the tensor is the node's result, neither could ever be freed.
    """
    version = tensor._version
    if not tensor.is_leaf:
        tensor = tensor.detach()
    return (tensor, version) if version else tensor


def find_scope(frame: FrameType | None) -> str:
    """The classes whose `forward` is running, outermost first, such as `GPT.Block.Linear`."""
    names: list[str] = []
    while frame is not None:
        if frame.f_code.co_name == "forward":
            names.append(_class_of(frame))
        frame = frame.f_back
    known = [name for name in reversed(names) if name.isidentifier()]
    return ".".join(known) or "code outside any module"


def _class_of(frame: FrameType) -> str:
    """The class that the running method was written in."""
    if sys.version_info >= (3, 11):
        # Not by `f_locals`: before Python 3.13 that leaves a copy of all local variables with the
        # frame, which keeps activations alive that `forward` has deleted.
        return ".".join(frame.f_code.co_qualname.split(".")[-2:-1])
    return type(frame.f_locals["self"]).__name__ if "self" in frame.f_locals else ""
