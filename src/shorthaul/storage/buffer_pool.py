"""Aligned memory that is reused, within a budget.

Fresh memory costs more in page faults than the disk does: copying 400 MiB into new pages took 0.50 s
of CPU where copying into pooled pages took 0.06 s. So a pool keeps what it has mapped.

>>> import torch
>>> with BufferPool("64MiB") as pool:
...     buffer = pool.take(8192)
...     ones = buffer.tensor(torch.float32, (2, 1024)).fill_(1)
...     buffer.release()  # `ones` still lives, so its memory is not handed out again
...     pool.in_use_bytes
...     del ones
...     pool.in_use_bytes
8192
0
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import queue
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt
import torch

from shorthaul.closing import Closing
from shorthaul.errors import BufferBudgetError, WaitTimeoutError
from shorthaul.interrupts import PATIENCE_SECONDS, PatientLock, obey_interrupts
from shorthaul.meter import KeptBytes, record_stall
from shorthaul.storage.page_moves import move_pages
from shorthaul.storage.protection import remember_writable
from shorthaul.units import format_bytes, parse_bytes

Bytes = npt.NDArray[np.uint8]

PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 2 * 2**20
NO_LIMIT_BYTES = 2**62  # the budget of a pool whose takers limit what they hold


@functools.lru_cache(4096)  # asked several times for each buffer
def choose_class_bytes(length_bytes: int) -> int:
    """The size that is mapped for a buffer: at most a quarter more than was asked.

    Four classes to each doubling, whole pages; from 8 MiB on whole huge pages.
    """
    pages = max(1, -(-length_bytes // PAGE_BYTES))
    step = max(1, 1 << max(0, (pages - 1).bit_length() - 3))
    return -(-pages // step) * step * PAGE_BYTES


@dataclass(eq=False)
class Region:
    """One mapping. It owns the memory; a lease on it is a numpy array made for one taker."""

    class_bytes: int
    mapping: mmap.mmap | None  # None once it went back to the system
    address: int  # of the first byte that is lent
    lead_bytes: int  # skipped at the front, so that huge pages fit

    def lease(self) -> Bytes:
        """The memory as an array that keeps it alive."""
        # Views of this array keep it alive, and numpy does not look through it to the mapping,
        # because a mapping is no array: when it dies, nothing can reach the memory any more.
        assert self.mapping is not None
        return np.frombuffer(self.mapping, np.uint8, self.class_bytes, self.lead_bytes)

    def give_pages(self, taker: Region, at_bytes: int, length_bytes: int) -> bool:
        """Give the first `length_bytes` to `taker`, at an offset in it, and go on without them."""
        if not move_pages(self.address, taker.address + at_bytes, length_bytes):
            return False
        self.class_bytes -= length_bytes
        self.lead_bytes += length_bytes
        self.address += length_bytes
        return True


def _map_region(class_bytes: int) -> Region:
    is_huge = class_bytes >= HUGE_PAGE_BYTES
    # Private: a shared mapping costs shmem accounting and a slower fault for each page.
    mapping = mmap.mmap(
        -1,
        class_bytes + (HUGE_PAGE_BYTES if is_huge else 0),
        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
    )
    address: int = np.frombuffer(mapping, np.uint8).ctypes.data
    lead_bytes = 0
    if is_huge:
        lead_bytes = -address % HUGE_PAGE_BYTES
        with contextlib.suppress(OSError):  # a kernel without huge pages loses the advice only
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return Region(class_bytes, mapping, address + lead_bytes, lead_bytes)


class _Loan(weakref.ref[Bytes]):
    """Tells when a lease dies: then nothing reaches the memory of its region any more.

    Its callback puts it into the pool's queue and is no Python: in a destructor, an interrupt that
    came while Python ran would be lost, and the region with it.
    """

    __slots__ = ("region",)

    region: Region


class Buffer:
    """Memory on loan from a pool: given back by `release`, by `with`, or when it is forgotten.

    Made by `BufferPool.take`. The pool hands the memory out again only when every tensor and array
    made from it is gone too.
    """

    def __init__(self, lease: Bytes, address: int, length_bytes: int) -> None:
        self._lease: Bytes | None = lease
        self.length_bytes = length_bytes
        self.capacity_bytes = lease.nbytes
        self.address = address

    @property
    def memory(self) -> Bytes:
        """The bytes, as a numpy array that shares them."""
        if self._lease is None:
            raise ValueError("this buffer has been released; take another from the pool")
        return self._lease[: self.length_bytes]

    def tensor(
        self, dtype: torch.dtype, shape: Sequence[int], *, offset_bytes: int = 0
    ) -> torch.Tensor:
        """A tensor that shares the bytes, and keeps them from being handed out while it lives.

        Args:
            dtype: Of its values.
            shape: Of the tensor.
            offset_bytes: Where it begins in the buffer (default 0).
        """
        count = 1
        for size in shape:
            count *= size
        needed_bytes = count * dtype.itemsize
        if offset_bytes < 0 or offset_bytes + needed_bytes > self.length_bytes:
            raise ValueError(
                f"a tensor of {tuple(shape)} {dtype} at byte {offset_bytes:,} needs "
                f"{needed_bytes:,} bytes, but the buffer has {self.length_bytes:,}"
            )
        if needed_bytes == 0:
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        flat = remember_writable(
            torch.frombuffer(self.memory, dtype=dtype, count=count, offset=offset_bytes)
        )
        return flat if len(shape) == 1 else flat.view(tuple(shape))

    def release(self) -> None:
        """Give the memory back; again is harmless."""
        self._lease = None

    @property
    def is_released(self) -> bool:
        """Whether `release` has been called."""
        return self._lease is None

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        state = ", released" if self.is_released else ""
        return f"Buffer({format_bytes(self.length_bytes)} at {self.address:#x}{state})"


class BufferPool(Closing):
    """Buffers within a budget: `take` waits for room when the budget is used up.

    When another size needs the room, what is kept for reuse gives it its pages, the longest unused
    first, or is unmapped.

    Args:
        budget_bytes: Bounds everything mapped, lent out or kept for reuse; a number or such as
            `"1GiB"`.
        why: What the meter calls these bytes (default `"storage buffers"`).
    """

    moves_pages = True

    def __init__(self, budget_bytes: int | str, *, why: str = "storage buffers") -> None:
        self.budget_bytes = parse_bytes(budget_bytes)
        self.why = why
        self._mapped = KeptBytes(why)
        self._is_closed = False
        self._free: OrderedDict[int, list[Region]] = OrderedDict()  # longest unused class first
        self._lent_bytes = 0
        self._loans: dict[int, _Loan] = {}  # nobody else keeps them
        # Regions come back from wherever the last reference dies: any thread, even inside `take`
        # when the garbage collector runs there. Only a SimpleQueue is made to be put to from there.
        self._returned: queue.SimpleQueue[_Loan | None] = queue.SimpleQueue()
        self._start_afresh()
        _pools.add(self)

    def _start_afresh(self) -> None:
        # One taker at a time looks for room, so that a large request is not overtaken forever.
        self._turn = PatientLock()

    @property
    def mapped_bytes(self) -> int:
        """Bytes mapped, lent out or kept for reuse."""
        return self._mapped.bytes

    @property
    def in_use_bytes(self) -> int:
        """Bytes lent out, whether as buffers or as tensors that outlived them."""
        if not self._returned.empty() and self._turn.acquire(0.0):
            try:
                self._collect()
            finally:
                self._turn.release()
        return self._lent_bytes

    def take(
        self,
        length_bytes: int,
        block: bool = True,
        timeout_seconds: float | None = None,
        mapped_bytes: int | None = None,
    ) -> Buffer:
        """A buffer, aligned to at least 4 KiB, with arbitrary content.

        Waits until there is room; `BufferBudgetError` when it could never fit.

        Args:
            length_bytes: Its size.
            block: False raises `WaitTimeoutError` at once where there is no room (default True).
            timeout_seconds: How long to wait before that error; None (default) waits as long as it
                takes.
            mapped_bytes: Free buffers of other sizes make room above this; None (default) for the
                budget.
        """
        if length_bytes < 0:
            raise ValueError(f"length_bytes must not be negative, got {length_bytes}")
        class_bytes = choose_class_bytes(length_bytes)
        if class_bytes > self.budget_bytes:
            class_bytes = -(-max(1, length_bytes) // PAGE_BYTES) * PAGE_BYTES
        if class_bytes > self.budget_bytes:
            raise BufferBudgetError(class_bytes, self.budget_bytes)
        limit_seconds = timeout_seconds if block else 0.0
        started = time.monotonic()
        if not self._turn.acquire(limit_seconds):
            raise WaitTimeoutError(self._describe(length_bytes), limit_seconds or 0.0)
        try:
            limit_bytes = min(self.budget_bytes, mapped_bytes or self.budget_bytes)
            region = self._find(class_bytes, limit_bytes)
            while region is None:
                spent = time.monotonic() - started
                left = None if limit_seconds is None else max(0.0, limit_seconds - spent)
                if left == 0.0:
                    raise WaitTimeoutError(self._describe(length_bytes), limit_seconds or 0.0)
                self._await_return(left)
                region = self._find(class_bytes, limit_bytes)
                if region is not None:
                    record_stall(time.monotonic() - started, self.why)
            return Buffer(self._lend(region), region.address, length_bytes)
        finally:
            self._turn.release()

    def _await_return(self, limit_seconds: float | None) -> None:
        """Sleep until something comes back, or a little, after which there may be an interrupt."""
        seconds = (
            PATIENCE_SECONDS if limit_seconds is None else min(limit_seconds, PATIENCE_SECONDS)
        )
        with contextlib.suppress(queue.Empty):
            self._keep(self._returned.get(timeout=seconds))
        obey_interrupts()

    def _lend(self, region: Region) -> Bytes:
        lease = region.lease()
        loan = _Loan(lease, self._returned.put)
        loan.region = region
        self._loans[id(loan)] = loan
        self._lent_bytes += region.class_bytes
        return lease

    def trim(self, mapped_bytes: int) -> None:
        """Unmap what is free, the longest unused first, until `mapped_bytes` are mapped at most."""
        with self._turn:
            self._collect()
            while self._free and self.mapped_bytes > mapped_bytes:
                self._unmap_one()

    def close(self) -> None:
        """Unmap what is free now, and everything else as it comes back.

        The meter stops counting it here: what is still lent belongs to the tensors that hold it.
        """
        self._is_closed = True
        self._returned.put(None)  # wakes a taker that waits for room
        with self._turn:
            self._collect()
            self._free.clear()
            for loan in self._loans.values():  # the leases alone keep that memory from now on
                loan.region.mapping = None
            self._mapped.change(-self.mapped_bytes)

    def _find(self, class_bytes: int, limit_bytes: int) -> Region | None:
        """A region of that class: kept, or newly mapped where the budget allows."""
        if self._is_closed:
            raise ValueError("this buffer pool is closed")
        self._collect()
        kept = self._free.get(class_bytes)
        if kept:
            return kept.pop()  # the one used last is the warmest
        if self._lent_bytes + class_bytes > self.budget_bytes:
            return None
        region = _map_region(class_bytes)
        if self.moves_pages:
            self._collect_pages(region, self.mapped_bytes + class_bytes - limit_bytes)
        while self._free and self.mapped_bytes + class_bytes > limit_bytes:
            self._unmap_one()
        self._mapped.change(class_bytes)
        return region

    def _collect_pages(self, taker: Region, wanted_bytes: int) -> None:
        """Move huge pages of free regions into a new one: nobody has to clear them again."""
        wanted_bytes = min(-(-wanted_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, taker.class_bytes)
        moved_bytes = 0
        for giver in [each for regions in self._free.values() for each in regions]:
            length_bytes = min(giver.class_bytes, wanted_bytes - moved_bytes)
            length_bytes -= length_bytes % HUGE_PAGE_BYTES
            if length_bytes <= 0:
                continue
            self._free[giver.class_bytes].remove(giver)
            if giver.give_pages(taker, moved_bytes, length_bytes):
                moved_bytes += length_bytes
            if giver.class_bytes:
                self._free.setdefault(giver.class_bytes, []).append(giver)
        self._mapped.change(-moved_bytes)

    def _collect(self) -> None:
        while not self._returned.empty():  # nobody else takes from it: the turn is ours
            self._keep(self._returned.get_nowait())

    def _keep(self, loan: _Loan | None) -> None:
        if loan is None:
            return
        del self._loans[id(loan)]
        region = loan.region
        self._lent_bytes -= region.class_bytes
        if not self._is_closed:
            self._free.setdefault(region.class_bytes, []).append(region)
            self._free.move_to_end(region.class_bytes)

    def _unmap_one(self) -> None:
        class_bytes, regions = next(iter(self._free.items()))
        if regions:
            regions.pop(0)
            self._mapped.change(-class_bytes)
        if not regions:
            del self._free[class_bytes]

    def _describe(self, length_bytes: int) -> str:
        return (
            f"a buffer of {format_bytes(length_bytes)} from a pool of "
            f"{format_bytes(self.budget_bytes)}"
        )

    def __repr__(self) -> str:
        lent, budget = format_bytes(self._lent_bytes), format_bytes(self.budget_bytes)
        return f"BufferPool({lent} of {budget} in use, {format_bytes(self.mapped_bytes)} mapped)"


_pools: weakref.WeakSet[BufferPool] = weakref.WeakSet()


def _start_pools_afresh() -> None:
    # A lock held by another thread at the fork would be held forever in the child.
    for pool in list(_pools):
        pool._start_afresh()


os.register_at_fork(after_in_child=_start_pools_afresh)
