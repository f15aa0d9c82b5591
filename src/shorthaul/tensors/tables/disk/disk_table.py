"""Rows that lie in a file: read as they are asked for, past the page cache, each of them once.

ids -> cache -> `RowPlan` -> pieces -> engine -> pooled buffers -> rows in `out`. A few pieces are
read while earlier ones are copied, so memory is bounded whatever is asked for.

>>> import numpy as np, tempfile
>>> from shorthaul.tensors.files.formats import find_layout
>>> with tempfile.NamedTemporaryFile(suffix=".npy") as file:
...     np.save(file, np.arange(12, dtype=np.float32).reshape(6, 2)); file.flush()
...     with DiskTable(find_layout(file.name)) as table:
...         table.gather(torch.tensor([5, 0, 5]))
tensor([[10., 11.],
        [ 0.,  1.],
        [10., 11.]])
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections import deque
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from shorthaul.closing import Closing
from shorthaul.errors import (
    BufferBudgetError,
    ChangedFileError,
    ClosedTableError,
    ReadOnlyTableError,
    RowReadError,
    StorageError,
    WaitTimeoutError,
)
from shorthaul.interrupts import PatientLock, obey_interrupts
from shorthaul.jit.runtime import alone_after_fork
from shorthaul.meter import record_move
from shorthaul.storage import (
    Buffer,
    BufferPool,
    Priority,
    StorageEngine,
    Ticket,
    open_file,
)
from shorthaul.tensors.files.layout import DiskLayout
from shorthaul.tensors.kernels import host_kernels
from shorthaul.tensors.kernels.host_kernels import plain_ids, require_ids
from shorthaul.tensors.kernels.plain_rows import Reduction
from shorthaul.tensors.kernels.stored_rows import StoredRows
from shorthaul.tensors.memory.row_buffers import choose_out, empty_rows
from shorthaul.tensors.tables.disk.disk_ticket import DiskTicket
from shorthaul.tensors.tables.disk.plan import Piece, RowPlan, plan_rows
from shorthaul.tensors.tables.disk.row_cache import Policy, RowCache
from shorthaul.tensors.tables.disk.row_order import RowOrder
from shorthaul.tensors.tables.disk.shared_engine import shared_engine
from shorthaul.tensors.tables.disk.stretch import can_read_stretch, read_stretch
from shorthaul.tensors.tables.table import GatherTicket, RowTable, TableStats, require_reduction
from shorthaul.units import parse_bytes

WHY = "feature rows"
PIECES_AHEAD = 4  # buffers that are read at the same time, so that the disk's queue never empties
_LINEAR_CHUNK_BYTES = 32 * 2**20  # of rows that are multiplied before the next are read


class DiskTable(Closing, RowTable):
    """A table in a file, opened for reading, with an optional cache of rows in memory.

    `cache` is `"sieve"`, `"belady"` or the ids of the rows to keep, hottest first (see
    `row_cache`). `buffer_bytes` bounds what is on its way from the disk. An `engine` that is given
    stays the caller's; otherwise all tables of a process share one.
    """

    kind = "disk"

    def __init__(
        self,
        layout: DiskLayout,
        *,
        cache: Policy | torch.Tensor | None = None,
        cache_bytes: int | str = "256MiB",
        engine: StorageEngine | None = None,
        buffer_bytes: int | str = "64MiB",
    ) -> None:
        self.layout = layout
        self.shape = layout.shape
        self.dtype = layout.dtype
        self.stored_dtype = layout.stored_dtype or layout.dtype
        self.stored_row_bytes = layout.row_bytes + (4 if layout.scales is not None else 0)
        self._options: dict[str, Any] = {
            "cache": cache,
            "cache_bytes": cache_bytes,
            "buffer_bytes": buffer_bytes,
        }
        self.file = open_file(layout.path, "read")
        self.is_closed = False
        self.opened_bytes = self.file.size_bytes
        self._engine = engine
        self._pool = BufferPool(buffer_bytes, why="rows on their way from disk")
        self._piece_bytes = max(2**16, parse_bytes(buffer_bytes) // PIECES_AHEAD)
        self.cache: RowCache | None = None
        self._stats = TableStats()
        self._start_afresh()
        self._require_unchanged()
        self._scales = self._read_beside(layout.scales, "scales of rows")
        first = self._read_beside(layout.order, "order of rows")
        self._order = None if first is None else RowOrder(first, self.rows, layout.path)
        if cache is not None:
            if self._order is not None and isinstance(cache, torch.Tensor):
                cache = self._places(plain_ids(cache.cpu().long(), self.rows))
            self.cache = RowCache(cache, budget_bytes=cache_bytes, row_bytes=layout.row_bytes)
        _tables.add(self)

    @alone_after_fork
    def gather(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The rows that `ids` name, in that order: a tensor of its own, or `out`."""
        return self._start(ids, out, Priority.DEMAND).wait()

    @alone_after_fork
    def prefetch(self, ids: torch.Tensor) -> GatherTicket:
        """Start reading; what exceeds the buffers is read when the ticket is waited for."""
        return self._start(ids, None, Priority.PREFETCH)

    @alone_after_fork
    def gather_reduce(
        self,
        pointers: torch.Tensor,
        ids: torch.Tensor,
        op: Reduction = "sum",
        weights: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One row for each segment of `ids`; each different row is read once and widened never."""
        require_reduction(self, pointers, ids, op, weights)
        whole = plain_ids(ids, self.rows)
        unique, inverse = torch.unique(whole, return_inverse=True)
        rows = self._gather_stored(unique)
        result = host_kernels.gather_reduce(rows, pointers, inverse, op, weights, out)
        self._add(rows_asked=len(ids) - len(unique))
        return result if out is None else out

    @alone_after_fork
    def gather_linear(
        self,
        ids: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`linear(rows, weight, bias)`, a chunk of rows read at a time."""
        require_ids(ids)
        whole = plain_ids(ids, self.rows)
        result = choose_out(out, (len(ids), *weight.shape[:1]), self.dtype, ids, weight, bias)
        step = max(1, _LINEAR_CHUNK_BYTES // max(1, self.stored_row_bytes))
        for start in range(0, len(ids), step):
            rows = self._gather_stored(whole[start : start + step])
            own = result[start : start + step]
            host_kernels.gather_linear(
                rows, torch.arange(len(own), dtype=torch.int64, device="cpu"), weight, bias, own
            )
        return result if out is None else out

    def scatter_(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Refused: the file is opened for reading."""
        del ids, rows
        raise ReadOnlyTableError("scatter_", self.layout.path)

    def tensor(self) -> torch.Tensor | None:
        """None: no memory holds the table."""
        return None

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Rows `start` to `stop`, read now, as they lie in the file where they lie side by side."""
        is_inside = 0 <= start < stop <= self.rows and not self.is_closed
        if is_inside and can_read_stretch(self.layout):
            self._require_unchanged()
            with contextlib.suppress(StorageError):  # the gather below names the rows
                rows, read_bytes = read_stretch(
                    self.engine, self.file, self.layout, (start, stop), self.opened_bytes
                )
                count, moved_bytes = len(rows), len(rows) * self.stored_row_bytes
                self._add(rows_asked=count, unique_rows=count, moved_bytes=moved_bytes)
                self._add(read_bytes=read_bytes)
                return rows
        return self.gather(torch.arange(start, stop, dtype=torch.int64, device="cpu"))

    @property
    def looks_ahead(self) -> bool:
        """Whether there is a cache that could make use of it."""
        return self.cache is not None

    @property
    def gains_from_cache(self) -> bool:
        """Whether it has none."""
        return self.cache is None and self.layout.row_bytes > 0

    def keep_expected(self, budget_bytes: int) -> None:
        """Have a cache that looks ahead, unless there is one."""
        if self.gains_from_cache and not self.is_closed:
            self.cache = RowCache(
                "belady", budget_bytes=budget_bytes, row_bytes=self.layout.row_bytes
            )

    @alone_after_fork
    def expect(self, ids: torch.Tensor) -> None:
        """Tell the cache that a later gather, after those told before, will ask for `ids`."""
        if self.cache is not None:
            places = torch.unique(self._places(plain_ids(ids, self.rows)))
            with self._lock:
                self.cache.expect(places)

    def forget_expected(self) -> None:
        """What was expected will not come."""
        if self.cache is not None:
            with self._lock:
                self.cache.forget_expected()

    def stats(self) -> TableStats:
        """What has been asked so far, what was read for it, and what the cache saved."""
        return self._stats

    def close(self) -> None:
        """Close the file and let go of buffers and cache; what was handed out stays."""
        self.is_closed = True
        self.file.close()
        self._pool.close()
        self.cache = None

    @property
    def engine(self) -> StorageEngine:
        """What reads the file."""
        return self._engine or shared_engine()

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process: the same file opened there, with a cache of its own.
        return _reopen, (self.layout, self._options)

    def _start(self, ids: torch.Tensor, out: torch.Tensor | None, priority: Priority) -> DiskTicket:
        require_ids(ids)
        whole = self._places(plain_ids(ids, self.rows))
        result = choose_out(out, (len(ids), *self.row_shape), self.dtype, ids)
        handed_out = result if out is None else out
        if self.stored_dtype is self.dtype:
            return DiskTicket(lambda: _Reading(self, whole, result, priority), lambda: handed_out)
        stored = empty_rows((len(ids), *self.row_shape), self.stored_dtype)

        def widen() -> torch.Tensor:
            scales = None if self._scales is None else self._scales[whole]
            rows = StoredRows(stored, self.dtype, scales)
            host_kernels.gather(
                rows, torch.arange(len(stored), dtype=torch.int64, device="cpu"), result
            )
            return handed_out

        return DiskTicket(lambda: _Reading(self, whole, stored, priority), widen)

    def _gather_stored(self, whole_ids: torch.Tensor) -> StoredRows:
        """Rows as they lie in the file, with their scales: what the kernels take."""
        whole_ids = self._places(whole_ids)
        stored = empty_rows((len(whole_ids), *self.row_shape), self.stored_dtype)
        _Reading(self, whole_ids, stored, Priority.DEMAND).finish()
        scales = None if self._scales is None else self._scales[whole_ids]
        return StoredRows(stored, self.dtype, scales)

    def _require_unchanged(self) -> None:
        path = self.layout.path
        try:
            status = path.stat()
        except FileNotFoundError:
            raise ChangedFileError(path, "it is no longer there") from None
        if (status.st_dev, status.st_ino) != self.file.identity:
            raise ChangedFileError(path, "another file has taken its name")
        last_bytes = max(each.stop_bytes for each in (self.layout, self.layout.scales) if each)
        if status.st_size < last_bytes:
            raise ChangedFileError(
                path,
                f"it has {status.st_size:,} bytes now, and its rows end at byte {last_bytes:,}",
            )

    def _places(self, whole_ids: torch.Tensor) -> torch.Tensor:
        """Where rows lie among those of the file."""
        return whole_ids if self._order is None else self._order.places(whole_ids)

    def _read_beside(self, layout: DiskLayout | None, why: str) -> torch.Tensor | None:
        """All of a column, some bytes a row: reading each beside its row would double the requests."""
        if layout is None:
            return None
        column = torch.empty(layout.shape[0], dtype=layout.dtype, device="cpu")
        if len(column):
            self.engine.read(self.file, layout.offset_bytes, column, why=why).wait()
        return column

    def _add(self, **more: float) -> None:
        with self._lock:
            now = {name: getattr(self._stats, name) + amount for name, amount in more.items()}
            self._stats = replace(self._stats, **now)

    def _start_afresh(self) -> None:
        # With interrupts deferred: rows that the cache says it has must be there.
        self._lock = PatientLock()


class _Under(NamedTuple):
    """A piece on its way."""

    piece: Piece
    buffer: Buffer
    ticket: Ticket


class _Reading:
    """One gather: hits are copied at once, and the first pieces of the rest are asked for."""

    def __init__(
        self, table: DiskTable, ids: torch.Tensor, out: torch.Tensor, priority: Priority
    ) -> None:
        self.table, self.out, self.priority = table, out, priority
        self.rows_asked = len(ids)
        self.pieces: deque[Piece] = deque()
        self.under_way: deque[_Under] = deque()
        if table.is_closed:
            raise ClosedTableError(table.layout.path)
        if len(ids) and table.layout.row_bytes:
            table._require_unchanged()
            self._begin(ids)

    def _begin(self, ids: torch.Tensor) -> None:
        table = self.table
        wanted = torch.arange(len(ids), dtype=torch.int64, device="cpu")
        if table.cache is not None:
            ids, wanted = self._copy_hits(table.cache, ids, wanted)
        self.plan: RowPlan = plan_rows(
            table.layout,
            ids.numpy(),
            alignment_bytes=table.file.alignment_bytes,
            end_bytes=table.opened_bytes,
        )
        self.targets = wanted[torch.from_numpy(self.plan.order)]
        self.pieces.extend(self.plan.pieces(table._piece_bytes))
        if table.cache is None:
            table._add(unique_rows=self.plan.unique_rows)
        self._ask()

    def finish(self) -> None:
        """Wait forevery piece and copy its rows; to be called again if an interrupt came out."""
        table = self.table
        while self.under_way:
            obey_interrupts()
            under = self.under_way[0]
            started = time.perf_counter()
            try:
                under.ticket.wait()
            except StorageError as error:
                for other in self.under_way:
                    table.engine.cancel(other.ticket)
                raise self._name_rows(under, error) from error
            waited = time.perf_counter() - started
            table._add(read_bytes=under.piece.length_bytes, waited_seconds=waited)
            self._place(under)
            self.under_way.popleft()
            under.buffer.release()
            self._ask()
        moved_bytes = self.rows_asked * table.stored_row_bytes
        table._add(rows_asked=self.rows_asked, moved_bytes=moved_bytes)

    def _ask(self) -> None:
        """Ask for pieces as long as there are buffers."""
        reads = self.plan.reads
        while self.pieces and len(self.under_way) < PIECES_AHEAD:
            piece = self.pieces[0]
            buffer = self._take(piece.length_bytes)
            if buffer is None:
                return
            positions = reads.request_positions_bytes[piece.requests]
            ticket = self.table.engine.read_many(
                self.table.file,
                reads.request_offsets_bytes[piece.requests],
                reads.request_lengths_bytes[piece.requests],
                buffer,
                positions - positions[0],
                priority=self.priority,
                why=WHY,
            )
            self.under_way.append(_Under(piece, buffer, ticket))
            self.pieces.popleft()

    def _take(self, length_bytes: int) -> Buffer | None:
        """A buffer; none when others hold them all, unless there would be no progress at all."""
        try:
            return self.table._pool.take(length_bytes, block=False)
        except (WaitTimeoutError, BufferBudgetError):
            if self.under_way:
                return None
            # Tickets that nobody waits for yet hold the buffers: waiting here could be forever.
            return BufferPool(length_bytes + 2**22, why="rows on their way from disk").take(
                length_bytes
            )

    def _place(self, under: _Under) -> None:
        memory = torch.from_numpy(under.buffer.memory)
        positions = torch.from_numpy(self.plan.positions_bytes(under.piece))
        host_kernels.place_rows(memory, positions, self.targets[under.piece.ranges], self.out)
        cache = self.table.cache
        if cache is not None:
            is_first = torch.from_numpy(self.plan.is_first[under.piece.ranges])
            ids = torch.from_numpy(self.plan.sorted_ids[under.piece.ranges])[is_first]
            with self.table._lock:
                slots = cache.admit(ids)
                kept = slots >= 0
                host_kernels.place_rows(memory, positions[is_first][kept], slots[kept], cache.rows)

    def _copy_hits(
        self, cache: RowCache, ids: torch.Tensor, wanted: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy what the cache has; the ids that it has not, and where their rows belong."""
        unique, inverse = torch.unique(ids, return_inverse=True)
        with self.table._lock:
            slots = cache.look_up(unique)
            slot_of_id = slots[inverse]
            is_hit = slot_of_id >= 0
            positions = slot_of_id[is_hit] * cache.row_bytes
            host_kernels.place_rows(cache.rows, positions, wanted[is_hit], self.out)
        hits = int((slots >= 0).sum())
        saved_bytes = hits * cache.row_bytes
        self.table._add(
            unique_rows=len(unique), hits=hits, misses=len(unique) - hits, saved_bytes=saved_bytes
        )
        record_move("row cache", "memory", saved_bytes, WHY, hits)
        return ids[~is_hit], wanted[~is_hit]

    def _name_rows(self, under: _Under, error: StorageError) -> RowReadError:
        failures = under.ticket.failures
        rows = [
            row
            for failure in failures
            for row in self.plan.rows_of_request(under.piece, failure.range_index)
        ]
        if (order := self.table._order) is not None:
            rows = order.ids(torch.tensor(rows, dtype=torch.int64, device="cpu")).tolist()
        return RowReadError(self.table.layout.path, rows, error)


_tables: weakref.WeakSet[DiskTable] = weakref.WeakSet()


def _reopen(layout: DiskLayout, options: dict[str, Any]) -> DiskTable:
    return DiskTable(layout, **options)


def _start_tables_afresh() -> None:
    # A lock held by another thread at the fork would be held forever in the child.
    for table in list(_tables):
        table._start_afresh()


os.register_at_fork(after_in_child=_start_tables_afresh)
