"""Rows for a consumer on a CUDA device: read from host memory by the device itself.

| table                          | how its rows get to the device                              |
| in memory, mapped              | a Triton kernel reads them; without Triton, `index_select`  |
| in memory, cannot be mapped    | gathered by the CPU and copied, which is noted as a fallback|
| in memory, rows not in a piece | the same                                                    |
| a range of a table             | as the table's rows do                                      |
| on disk                        | the same: disks are read by the CPU                         |

`SHORTHAUL_KERNELS=torch` never maps; `generated` raises where `auto` would fall back.
"""

from __future__ import annotations

import functools
import threading
import weakref
from dataclasses import dataclass, field
from types import ModuleType

import torch

from shorthaul.errors import CudaMappingError, CudaUnavailableError
from shorthaul.fallbacks import note_fallback
from shorthaul.jit.launching.device_guard import computing_on, with_number
from shorthaul.jit.launching.triton_at_hand import require_triton, why_no_triton
from shorthaul.meter import record_move
from shorthaul.settings import settings
from shorthaul.tensors.cuda.late_check import LateCheck
from shorthaul.tensors.cuda.mapping import map_rows
from shorthaul.tensors.cuda.registration import HostRegistry
from shorthaul.tensors.cuda.row_cache import DeviceRowCache, plan_hot_rows
from shorthaul.tensors.cuda.runtime import load_runtime
from shorthaul.tensors.kernels.host_kernels import plain_ids
from shorthaul.tensors.kernels.plain_rows import Reduction
from shorthaul.tensors.kernels.stored_rows import StoredRows
from shorthaul.tensors.tables.row_range import RowRange
from shorthaul.tensors.tables.table import (
    HostTable,
    RowTable,
    before_writing,
    require_reducible,
    require_reduction,
)

WHAT = "gathers for CUDA"
INSTEAD = "gathers by the CPU, and copies"


@dataclass(frozen=True)
class _Mapped:
    """A table on one device: its rows, or why they cannot be mapped, and what is cached of them."""

    rows: StoredRows | None
    reason: str = ""
    cache: DeviceRowCache | None = None


@dataclass(eq=False)
class DeviceGather:
    """Gathers for devices that one registry maps memory into, and the tables mapped so far."""

    registry: HostRegistry
    _mapped: weakref.WeakKeyDictionary[RowTable, dict[torch.device, _Mapped]] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    _checks: weakref.WeakKeyDictionary[RowTable, dict[torch.device, LateCheck]] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def map(self, table: RowTable, device: torch.device) -> StoredRows | None:
        """The rows of `table` as `device` sees them, mapped at the first call; `None` if it cannot."""
        found = self._find(table, device)
        if found.rows is None:
            note_fallback(WHAT, INSTEAD, found.reason)
        return found.rows

    def view(
        self, memory: HostTable, tensor: torch.Tensor, device: torch.device
    ) -> torch.Tensor | None:
        """`tensor`, which lies in `memory`, as `device` sees it; `None` if that cannot be mapped."""
        whole = self.map(memory, device)
        return None if whole is None else _lay_out(whole.values, memory.stored.values, tensor)

    def forget(self, table: RowTable) -> None:
        """Unmap a table, and drop what is cached of it."""
        with self._lock:
            self._mapped.pop(table, None)

    def keep_hot_rows(
        self, table: RowTable, uses: torch.Tensor, device: torch.device, budget_bytes: int
    ) -> float:
        """Copy the rows used most to the device; returns the share of all `uses` that they are.

        They are copies: call it again after the table was written to.
        """
        rows = self.map(table, device)
        if rows is None or not isinstance(table, HostTable):
            return 0.0
        row_bytes = table.stored.width * table.stored.values.element_size()
        plan = plan_hot_rows(uses, budget_bytes=budget_bytes, row_bytes=row_bytes)
        cache = DeviceRowCache.fill(table.stored, plan, device)
        with self._lock:
            self._mapped[table][device] = _Mapped(rows, cache=cache)
        record_move("memory", device.type, cache.values.nbytes, "hot rows")
        return float(uses[plan.hot_ids].sum()) / max(1.0, float(uses.sum()))

    def require_clear(self) -> None:
        """Wait for the devices, and raise if a gather so far was given an id out of range."""
        with self._lock:
            checks = [each for known in self._checks.values() for each in known.values()]
        for check in checks:
            check.require_clear()

    def gather(
        self,
        table: RowTable,
        ids: torch.Tensor,
        device: torch.device,
        *,
        out: torch.Tensor | None = None,
        is_sorted: bool = False,
    ) -> torch.Tensor:
        """The rows that `ids` name, on `device`.

        Ids on the device are checked by the kernel, for whose answer the host does not wait: an id out
        of range is a `LateRowIndexError` of a later gather, or of `require_clear`.
        """
        rows = self.map(table, device)
        if rows is None:
            return _gather_and_copy(table, ids, device, out)
        _count(table, ids.shape[0], device)
        launch = _load_launch()
        with computing_on(device):
            is_checked = ids.device.type == "cpu" and device.type != "cpu"
            if is_checked or launch is None:
                ids = copy_ahead(plain_ids(ids.cpu(), table.rows), device)
            if launch is None:
                return _hand_out(_select(rows, ids), device, out)
            check = self._check(table, device)
            check.raise_if_over()
            cache = self._find(table, device).cache
            gathered: torch.Tensor = launch.gather_rows(
                rows, ids, check, out=out, is_sorted=is_sorted, cache=cache
            )
            if not is_checked:
                check.note_launch(ids, table.rows)
        return gathered

    def gather_reduce(
        self,
        table: RowTable,
        pointers: torch.Tensor,
        ids: torch.Tensor,
        device: torch.device,
        op: Reduction = "sum",
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The sum, mean or maximum of each segment's rows, on `device`."""
        rows = self.map(table, device)
        launch = _load_launch()
        if rows is None or launch is None:
            on_host = None if weights is None else weights.cpu()
            reduced = table.gather_reduce(pointers.cpu(), ids.cpu(), op, on_host)
            return _hand_out(reduced, device, None)
        with computing_on(device):
            check = self._check(table, device)
            check.raise_if_over()
            # Numbers on the device are checked there: here only their kind and count matter.
            if check.is_late and pointers.device == device:
                require_reducible(table, _as_host(pointers), _as_host(ids), op, weights)
                check.note_segments(pointers, len(ids))
            else:
                require_reduction(table, pointers.cpu(), _as_host(ids), op, weights)
            _count(table, ids.shape[0], device)
            is_checked = ids.device.type == "cpu" and device.type != "cpu"
            if is_checked:
                ids = copy_ahead(plain_ids(ids, table.rows), device)
            on_device: torch.Tensor = launch.reduce_rows(
                rows,
                pointers.to(device),
                ids,
                op,
                check,
                weights=None if weights is None else weights.to(device),
                cache=self._find(table, device).cache,
            )
            if not is_checked:
                check.note_launch(ids, table.rows)
        return on_device

    def _check(self, table: RowTable, device: torch.device) -> LateCheck:
        with self._lock:
            known = self._checks.setdefault(_owner_of(table), {})
            if device not in known:
                known[device] = LateCheck(device)
            return known[device]

    def _find(self, table: RowTable, device: torch.device) -> _Mapped:
        with self._lock:
            known = self._mapped.setdefault(table, {})
            if device not in known:
                known[device] = self._map(table, device)
            return known[device]

    def _map_part(self, table: HostTable, memory: HostTable, device: torch.device) -> _Mapped:
        """Rows in memory that others lie in too: it is mapped once for all, and stays while it lives."""
        whole, stored = self._find(memory, device), table.stored
        if whole.rows is None:
            # All of it may be more than can be locked, or may not be in memory at all.
            is_part = stored.values.nbytes < memory.stored.values.nbytes
            return self._map_alone(table, device) if is_part else whole
        seen = _lay_out(whole.rows.values, memory.stored.values, stored.values)
        if seen is None:
            return _Mapped(None, "there is nothing to map, or its address is odd")
        scales = None if stored.scales is None else stored.scales.to(device)
        return _Mapped(StoredRows(seen, stored.dtype, scales))

    def _map(self, table: RowTable, device: torch.device) -> _Mapped:
        if isinstance(table, RowRange) and table.span.step > 0:
            return _part_of(self._find(table.table, device), table.span)
        if not isinstance(table, HostTable):
            return _Mapped(None, f"rows on {table.kind} are read by the CPU")
        if not table.stored.has_whole_rows:
            return _Mapped(None, "the values of a row do not lie side by side")
        if table.memory is not None:
            return self._map_part(table, table.memory, device)
        return self._map_alone(table, device)

    def _map_alone(self, table: HostTable, device: torch.device) -> _Mapped:
        try:
            with computing_on(device):
                return _Mapped(map_rows(table.stored, device, self.registry))
        except CudaMappingError as error:
            if settings.kernels == "generated":
                raise
            return _Mapped(None, error.reason)


def _lay_out(
    whole: torch.Tensor, memory: torch.Tensor, tensor: torch.Tensor
) -> torch.Tensor | None:
    """The part of `whole`, memory on a device, that `tensor` is of the same memory on the host."""
    lead_bytes = int(whole.storage_offset()) * whole.element_size()
    start_bytes = tensor.data_ptr() - memory.data_ptr() + lead_bytes
    if tensor.numel() == 0 or start_bytes % tensor.element_size():
        return None
    seen = torch.empty(0, dtype=tensor.dtype, device=whole.device)
    offset = start_bytes // tensor.element_size()
    return seen.set_(whole.untyped_storage(), offset, tensor.shape, tensor.stride())


def _as_host(ids: torch.Tensor) -> torch.Tensor:
    """As many ids of the same kind on the host, whatever they are."""
    return torch.empty(ids.shape, dtype=ids.dtype, device="cpu")


def _owner_of(table: RowTable) -> RowTable:
    """The table whose rows a slice is of: what is asked of slices is noted where they come from."""
    if isinstance(table, RowRange):
        return _owner_of(table.table)
    if isinstance(table, HostTable) and table.memory is not None:
        return table.memory
    return table


def _count(table: RowTable, rows: int, device: torch.device) -> None:
    """Rows that the device reads itself are in the table's `stats()` like any others."""
    whole = table.table if isinstance(table, RowRange) else table
    if isinstance(whole, HostTable):
        whole.count(rows, device.type)


def _part_of(whole: _Mapped, span: range) -> _Mapped:
    """A range of rows that are mapped already; what is cached is known by other numbers."""
    if whole.rows is None:
        return whole
    part = slice(span.start, span.stop, span.step)
    scales = whole.rows.scales
    cut = None if scales is None else scales[part].contiguous()
    return _Mapped(StoredRows(whole.rows.values[part], whole.rows.dtype, cut))


def gather_for_device(
    table: RowTable,
    ids: torch.Tensor,
    device: torch.device | str,
    *,
    out: torch.Tensor | None = None,
    is_sorted: bool = False,
) -> torch.Tensor:
    """The rows of `table` that `ids` name, on `device`: what `u.gather(ids, device=...)` does."""
    device, gatherer = _gatherer_for(device)
    if gatherer is None:
        return _gather_and_copy(table, ids, device, out)
    return gatherer.gather(table, ids, device, out=out, is_sorted=is_sorted)


def gather_reduce_for_device(
    table: RowTable,
    pointers: torch.Tensor,
    ids: torch.Tensor,
    device: torch.device | str,
    op: Reduction = "sum",
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """One row for each segment of `ids`, on `device`: what `u.gather_reduce` does for CUDA."""
    device, gatherer = _gatherer_for(device)
    if gatherer is None:
        on_host = None if weights is None else weights.cpu()
        reduced = table.gather_reduce(pointers.cpu(), ids.cpu(), op, on_host)
        return _hand_out(reduced, device, None)
    return gatherer.gather_reduce(table, pointers, ids, device, op, weights)


def require_ids_in_range() -> None:
    """Wait for all devices, and raise if a gather so far was given an id that its table does not have.

    Gathers with ids on a device do not wait for the check of their ids; this does, as after a replayed
    CUDA graph or at the end of an epoch.

    >>> require_ids_in_range()
    """
    if _system_gather.cache_info().currsize:
        _system_gather().require_clear()


def view_for_device(
    memory: HostTable, tensor: torch.Tensor, device: torch.device
) -> torch.Tensor | None:
    """`tensor`, which lies in `memory`, as a CUDA device reads it there; `None` where it cannot."""
    device, gatherer = _gatherer_for(device)
    return None if gatherer is None else gatherer.view(memory, tensor, device)


def wait_for_readers(tensor: torch.Tensor) -> None:
    """Return when no device reads the memory of `tensor`: the host is about to write there."""
    if _system_gather.cache_info().currsize:
        registry = _system_gather().registry
        registry.wait_for_devices(tensor.data_ptr(), tensor.untyped_storage().nbytes())


before_writing.append(wait_for_readers)


def copy_ahead(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """`tensor` on `device`; the host goes on before the copy is there, where that is safe.

    It is not on the way to the host, where it would be read. Nor is it from a page that was mapped
    for a table beside the tensor: the device reads such memory by itself, and nobody would keep it.
    """
    is_ahead = torch.device(device).type != "cpu"
    if is_ahead and tensor.device.type == "cpu" and _system_gather.cache_info().currsize:
        is_ahead = not _system_gather().registry.has_mapped(tensor.data_ptr(), tensor.nbytes)
    return tensor.to(device, non_blocking=is_ahead)


def keep_hot_rows(
    table: RowTable,
    uses: torch.Tensor,
    device: torch.device | str,
    *,
    budget_bytes: int,
) -> float:
    """Keep the rows of `table` used most in device memory; returns the share of `uses` they are."""
    device, gatherer = _gatherer_for(device)
    return 0.0 if gatherer is None else gatherer.keep_hot_rows(table, uses, device, budget_bytes)


@functools.cache
def _system_gather() -> DeviceGather:
    return DeviceGather(HostRegistry(load_runtime()))


def _gatherer_for(device: torch.device | str) -> tuple[torch.device, DeviceGather | None]:
    """The device with its number, and what gathers for it; nothing where the CPU has to."""
    device = torch.device(device)
    if device.type != "cuda" or settings.kernels == "torch":
        return device, None
    try:
        gatherer = _system_gather()
    except CudaUnavailableError as error:
        if settings.kernels == "generated":
            raise
        note_fallback(WHAT, INSTEAD, error.reason)
        return device, None
    return with_number(device), gatherer


def _load_launch() -> ModuleType | None:
    """The module of Triton launches, or nothing where Triton cannot run."""
    reason = why_no_triton()
    if reason is not None:
        if settings.kernels == "generated":
            require_triton("gathering on a GPU by a generated kernel")
        note_fallback(WHAT, "index_select on mapped memory", reason)
        return None
    from shorthaul.tensors.cuda import triton_launch  # takes a second, and is optional

    return triton_launch


def _select(rows: StoredRows, ids: torch.Tensor) -> torch.Tensor:
    taken = rows.values.index_select(0, ids).to(rows.dtype)
    if rows.scales is None:
        return taken
    return taken * rows.scales[ids.long()].view(-1, *[1] * len(rows.row_shape))


def _gather_and_copy(
    table: RowTable, ids: torch.Tensor, device: torch.device, out: torch.Tensor | None
) -> torch.Tensor:
    """Gather by the CPU, for CUDA into pinned memory, which PyTorch keeps until the copy is done."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return _hand_out(table.gather(ids.cpu()), device, out)
    shape = (len(ids), *table.row_shape)
    staging = torch.empty(shape, dtype=table.dtype, pin_memory=True, device="cpu")
    table.gather(ids.cpu(), out=staging)
    record_move("memory", device.type, staging.nbytes, "rows copied")
    if out is None:
        return staging.to(device, non_blocking=True)
    return out.copy_(staging, non_blocking=True)


def _hand_out(rows: torch.Tensor, device: torch.device, out: torch.Tensor | None) -> torch.Tensor:
    return rows.to(device) if out is None else out.copy_(rows)
