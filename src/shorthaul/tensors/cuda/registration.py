"""Which host memory is mapped into CUDA devices, and who still needs it.

CUDA maps whole pages, refuses to map one twice, and does not count. Two tables may share a page, a
slice may lie inside a table that is mapped already, and others (`pin_memory`, another library) map
memory too. So a registry keeps the mapped ranges, cut into chunks, and counts the leases on each::

    lease of bytes        [ 5000 ............. 21000 )
    pages                [ 4096 ............... 24576 )
    known chunks                  [ 8192 .. 12288 )                one more lease on it
    registered now       [ 4096 )                 [ 24576 )        two new chunks

What others registered is used and never unregistered. A chunk is unregistered when its last lease
ends, and the memory itself is let go only after that. CUDA does not outlive a fork: a child forgets
everything, and never unregisters what is its parent's.
"""

from __future__ import annotations

import bisect
import logging
import os
import queue
import resource
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from shorthaul.errors import CudaMappingError
from shorthaul.storage.protection import is_writable
from shorthaul.tensors.cuda.runtime import (
    ALREADY_REGISTERED,
    MAPPED,
    NOT_REGISTERED,
    NOT_SUPPORTED,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    PORTABLE,
    READ_ONLY,
    RUNTIME_UNLOADING,
    SUCCESS,
    CudaRuntime,
)
from shorthaul.units import format_bytes

_log = logging.getLogger("shorthaul")

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# One registration locks its pages in one go; in pieces, a limit shows before all memory is locked.
CHUNK_BYTES = 2**30


@dataclass(eq=False)
class Chunk:
    """A range of whole pages that CUDA has mapped."""

    start: int
    stop: int
    pointer: int  # its first byte, as devices know it
    is_ours: bool  # false where somebody else registered it
    leases: int = 0
    keepers: list[object] = field(default_factory=list)  # of memory that CUDA would not unmap


class Lease:
    """Memory that stays mapped while this lives; `release` ends it early."""

    def __init__(
        self,
        registry: HostRegistry,
        address: int,
        length_bytes: int,
        chunks: Sequence[Chunk],
        keeper: object,
    ) -> None:
        self.address = address
        self.devices: set[torch.device] = set()  # to wait for before memory is unmapped
        self._pointer = chunks[0].pointer + address - chunks[0].start
        self._process = os.getpid()
        self.stop = address + length_bytes
        self._end = weakref.finalize(
            self, registry._give_back, tuple(chunks), self.devices, keeper, self._process
        )

    @property
    def pointer(self) -> int:
        """The first byte, as devices know it."""
        if self._process != os.getpid():
            raise CudaMappingError(
                "use", self.address, 0, "this process was forked, and CUDA was not", _FORKED
            )
        if not self._end.alive:
            raise CudaMappingError("use", self.address, 0, "it was released", "Map it again.")
        return self._pointer

    def release(self) -> None:
        """End the lease; again is harmless, and so is it in a forked child."""
        self._end()


class HostRegistry:
    """All host memory that this process has mapped into CUDA devices."""

    def __init__(
        self, runtime: CudaRuntime, *, chunk_bytes: int = CHUNK_BYTES, page_bytes: int = PAGE_BYTES
    ) -> None:
        if chunk_bytes <= 0 or chunk_bytes % page_bytes:
            raise ValueError(
                f"chunk_bytes must be a multiple of a page ({page_bytes}), got {chunk_bytes}"
            )
        self.runtime = runtime
        self.chunk_bytes, self.page_bytes = chunk_bytes, page_bytes
        self._start_afresh()
        _registries.add(self)

    def _start_afresh(self) -> None:
        self._chunks: list[Chunk] = []  # by address; they never overlap
        self._lock = threading.Lock()
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._leases_lock = threading.Lock()
        # Leases end wherever the last reference dies, even inside `lease` when the garbage collector
        # runs there. Only a SimpleQueue is made to be put to from there.
        self._returned: queue.SimpleQueue[tuple[tuple[Chunk, ...], set[torch.device], object]] = (
            queue.SimpleQueue()
        )

    @property
    def registered_bytes(self) -> int:
        """Bytes that this registry has mapped, in whole pages."""
        return sum(each.stop - each.start for each in self._chunks if each.is_ours)

    @property
    def ranges(self) -> tuple[tuple[int, int, int], ...]:
        """(first byte, stop, leases) of every chunk, by address."""
        return tuple((each.start, each.stop, each.leases) for each in self._chunks)

    def lease(self, address: int, length_bytes: int, keeper: object) -> Lease:
        """Map the pages of a range, and keep `keeper` (the memory's owner) until they are unmapped."""
        start = address // self.page_bytes * self.page_bytes
        stop = -(-(address + max(1, length_bytes)) // self.page_bytes) * self.page_bytes
        self._settle()
        try:
            with self._lock:
                chunks = self._cover(start, stop, keeper)
                for chunk in chunks:
                    chunk.leases += 1
            lease = Lease(self, address, length_bytes, chunks, keeper)
            with self._leases_lock:
                self._leases.add(lease)
            return lease
        finally:
            self._settle()

    def wait_for_devices(self, address: int, length_bytes: int) -> None:
        """Return when no device that sees a part of this range has anything left to do."""
        stop = address + length_bytes
        with self._leases_lock:  # others may be added by the threads of loaders
            leases = list(self._leases)
        found = [each for each in leases if each.address < stop and address < each.stop]
        for device in {device for lease in found for device in lease.devices}:
            self.runtime.synchronize(device)

    def has_mapped(self, address: int, length_bytes: int) -> bool:
        """Whether a page of this range was mapped here."""
        stop = address + length_bytes
        chunks = tuple(self._chunks)
        return any(each.is_ours and each.start < stop and address < each.stop for each in chunks)

    def _cover(self, start: int, stop: int, keeper: object) -> list[Chunk]:
        """Chunks that cover the pages from `start` to `stop`; the missing ones are registered."""
        found = [each for each in self._chunks if each.stop > start and each.start < stop]
        added: list[Chunk] = []
        try:
            for first, last in _gaps(found, start, stop):
                for at in range(first, last, self.chunk_bytes):
                    self._register(at, min(at + self.chunk_bytes, last), added)
            chunks = sorted([*found, *added], key=lambda each: each.start)
            self._require_one_piece(chunks)
        except BaseException:
            for chunk in added:
                if not self._unregister(chunk):
                    chunk.keepers.append(keeper)
                    self._insert(chunk)
            raise
        for chunk in added:
            self._insert(chunk)
        return chunks

    def _insert(self, chunk: Chunk) -> None:
        bisect.insort(self._chunks, chunk, key=lambda each: each.start)

    def _register(self, start: int, stop: int, added: list[Chunk]) -> None:
        code = self.runtime.register(start, stop - start, _flags_for(start, stop))
        if code == ALREADY_REGISTERED:
            self.runtime.clear_error()
            self._register_around_others(start, stop, added)
            return
        self._require_success("map", start, stop, code)
        self._add(start, stop, added, is_ours=True)

    def _register_around_others(self, start: int, stop: int, added: list[Chunk]) -> None:
        """Somebody else has registered pages of this range: use theirs, and register the rest.

        CUDA does not tell which, so every page is asked for. That takes a microsecond each, and
        guessing would let a kernel run into a page that nobody mapped, which ends the process.
        """
        runs: list[tuple[int, int, bool]] = []
        for page in range(start, stop, self.page_bytes):
            code, _ = self.runtime.device_pointer(page)
            is_known = code == SUCCESS
            if not is_known:
                self.runtime.clear_error()
            if runs and runs[-1][2] == is_known:
                runs[-1] = (runs[-1][0], page + self.page_bytes, is_known)
            else:
                runs.append((page, page + self.page_bytes, is_known))
        for first, last, is_known in runs:
            if not is_known:
                code = self.runtime.register(first, last - first, _flags_for(first, last))
                self._require_success("map", first, last, code)
            self._add(first, last, added, is_ours=not is_known)

    def _add(self, start: int, stop: int, added: list[Chunk], *, is_ours: bool) -> None:
        chunk = Chunk(start, stop, 0, is_ours)
        added.append(chunk)  # before anything may fail, so that it is unregistered again
        code, chunk.pointer = self.runtime.device_pointer(start)
        self._require_success("find the device's address of", start, stop, code)

    def _require_success(self, action: str, start: int, stop: int, code: int) -> None:
        if code != SUCCESS:
            self.runtime.clear_error()
            reason = f"CUDA answers {code}, {self.runtime.describe(code)}"
            raise CudaMappingError(action, start, stop - start, reason, advise_on(code))

    def _require_one_piece(self, chunks: Sequence[Chunk]) -> None:
        """Kernels add row numbers to one address, so devices must see the chunks side by side."""
        first = chunks[0]
        for chunk in chunks:
            if chunk.pointer - first.pointer != chunk.start - first.start:
                raise CudaMappingError(
                    "map",
                    first.start,
                    chunks[-1].stop - first.start,
                    "the device does not see its pages in one piece",
                    advise_on(NOT_SUPPORTED),
                )

    def _give_back(
        self,
        chunks: tuple[Chunk, ...],
        devices: set[torch.device],
        keeper: object,
        process: int,
    ) -> None:
        if process == os.getpid():
            self._returned.put((chunks, devices, keeper))
            self._settle()

    def _settle(self) -> None:
        """Unmap what no lease needs any more. Whoever holds the lock does this when it is done."""
        while not self._returned.empty() and self._lock.acquire(blocking=False):
            try:
                while not self._returned.empty():
                    self._drop(*self._returned.get_nowait())
            finally:
                self._lock.release()

    def _drop(self, chunks: Sequence[Chunk], devices: set[torch.device], keeper: object) -> None:
        for chunk in chunks:
            chunk.leases -= 1
        idle = [each for each in chunks if each.leases == 0]
        if any(each.is_ours for each in idle):
            for device in devices:  # a kernel that still reads would fail, and the process with it
                self.runtime.synchronize(device)
        for chunk in idle:
            if self._unregister(chunk):
                self._chunks.remove(chunk)
            else:
                chunk.keepers.append(keeper)  # memory that CUDA may still map is never given back

    def _unregister(self, chunk: Chunk) -> bool:
        """Unmap a chunk of ours; false when CUDA would not."""
        if not chunk.is_ours:
            return True
        code = self.runtime.unregister(chunk.start)
        if code in (SUCCESS, RUNTIME_UNLOADING, NOT_REGISTERED):
            if code == NOT_REGISTERED:
                self.runtime.clear_error()
            return True
        self.runtime.clear_error()
        _log.warning(
            "CUDA does not unmap %s at %#x (%d, %s); they stay in memory until the process ends",
            format_bytes(chunk.stop - chunk.start),
            chunk.start,
            code,
            self.runtime.describe(code),
        )
        return False


def _flags_for(start: int, stop: int) -> int:
    """How to register a range: what the process itself cannot write, a device must only read."""
    flags = PORTABLE | MAPPED
    return flags if is_writable(start, stop) else flags | READ_ONLY


_FORKED = "Start processes that use CUDA with the spawn method."


def advise_on(code: int) -> str:
    """What to do about a code of the CUDA runtime."""
    if code in (OUT_OF_MEMORY, OPERATING_SYSTEM):
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        shown = "unlimited" if limit == resource.RLIM_INFINITY else format_bytes(limit)
        return (
            "Mapped memory cannot be swapped out: raise the limit on locked memory "
            f"(ulimit -l, now {shown}), or map a smaller table."
        )
    if code == NOT_SUPPORTED:
        return "This platform cannot map host memory; rows are gathered by the CPU and copied."
    return "`shorthaul doctor` shows what was found; set SHORTHAUL_KERNELS=torch to do without."


def _gaps(chunks: Sequence[Chunk], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """What of the range from `start` to `stop` the chunks, which are in order, do not cover."""
    for chunk in chunks:
        if chunk.start > start:
            yield start, chunk.start
        start = max(start, chunk.stop)
    if start < stop:
        yield start, stop


_registries: weakref.WeakSet[HostRegistry] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for registry in list(_registries):
        registry._start_afresh()


os.register_at_fork(after_in_child=_forget_after_fork)
