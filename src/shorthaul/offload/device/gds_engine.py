"""A storage engine that moves bytes between a device and the disk, by NVIDIA's kvikio.

With GPUDirect Storage the host's memory is not touched at all; where that is not set up, kvikio
takes a detour through its own buffers, and this engine still works. It takes CUDA tensors and host
memory alike, and keeps the contract of every storage engine. `GdsEngine` is asked for by name::

    engine = GdsEngine()                        # EngineUnavailableError where kvikio is missing
    ticket = engine.write(file, 0, activation)  # a CUDA tensor
    ticket.wait()

Neither its speed nor GPUDirect itself has been measured or tried: it is tested against a fake of
kvikio that keeps kvikio's interface.
"""

from __future__ import annotations

import errno
import importlib
import weakref
from typing import Any, NamedTuple

import numpy as np
import torch

from shorthaul.errors import EngineUnavailableError
from shorthaul.offload.device.streams import CudaStreams, StreamBackend
from shorthaul.storage.engine import END_OF_FILE, IN_FLIGHT_BYTES, Priority, Span, Ticket
from shorthaul.storage.file import StorageFile
from shorthaul.storage.queue_engine import Job, Outcome, QueueEngine, Transfer


class DeviceBytes(NamedTuple):
    """A tensor on a device, as bytes, and the mark behind what computes it."""

    flat: torch.Tensor
    computed: Any


class GdsEngine(QueueEngine):
    """kvikio's reads and writes, in the order of their urgency."""

    name = "gds"

    def __init__(
        self,
        *,
        depth: int = 8,
        in_flight_bytes: int | str = IN_FLIGHT_BYTES,
        kvikio: Any = None,
        backend: StreamBackend | None = None,
    ) -> None:
        self._kvikio = kvikio or _import_kvikio()
        self._backend: StreamBackend = backend or CudaStreams()
        self._handles: weakref.WeakKeyDictionary[StorageFile, Any] = weakref.WeakKeyDictionary()
        super().__init__(
            depth=depth, in_flight_bytes=in_flight_bytes, piece_bytes=16 * 2**20, piece_ranges=64
        )

    def read(
        self,
        file: StorageFile,
        offset_bytes: int,
        target: Any,
        *,
        priority: Priority = Priority.DEMAND,
        why: str = "read",
    ) -> Ticket:
        """Fill `target`, which may be on a device, from `offset_bytes` on."""
        if not _is_on_device(target):
            return super().read(file, offset_bytes, target, priority=priority, why=why)
        return self._enter("read", file, self._span(target), offset_bytes, priority, why)

    def write(
        self,
        file: StorageFile,
        offset_bytes: int,
        source: Any,
        *,
        priority: Priority = Priority.WRITE,
        why: str = "write",
    ) -> Ticket:
        """Write `source`, which may be on a device; what computes it is waited for first."""
        if not _is_on_device(source) or not file.is_writable:
            return super().write(file, offset_bytes, source, priority=priority, why=why)
        return self._enter("write", file, self._span(source), offset_bytes, priority, why)

    def _span(self, tensor: torch.Tensor) -> Span:
        if not tensor.is_contiguous():
            raise ValueError(
                f"expected a contiguous tensor, got one on {tensor.device} with shape "
                f"{tuple(tensor.shape)} and strides {tensor.stride()}"
            )
        flat = tensor.detach().view(-1).view(torch.uint8)
        # kvikio knows no streams: the worker waits for this mark before it touches the memory. That
        # holds for reads too, as the memory may just have been let go of by a kernel under way.
        computed = self._backend.record_event(self._backend.current_stream(tensor.device))
        return Span(tensor.data_ptr(), tensor.nbytes, DeviceBytes(flat, computed))

    def _transfer(self, job: Job, transfer: Transfer) -> Outcome:
        file, keeper = job.request.file, job.request.span.keeper
        first, length_bytes = transfer.position_bytes, transfer.length_bytes
        if isinstance(keeper, DeviceBytes):
            self._backend.synchronize(keeper.computed)
        handle = self._open(file)
        move = handle.pwrite if job.request.is_write else handle.pread
        moved_bytes = requests = 0
        while moved_bytes < length_bytes:
            start, stop = first + moved_bytes, first + length_bytes
            part = (
                keeper.flat[start:stop]
                if isinstance(keeper, DeviceBytes)
                else np.frombuffer(job.memory[start:stop], np.uint8)
            )
            requests += 1
            try:
                count = move(part, stop - start, transfer.offset_bytes + moved_bytes).get()
            except OSError as error:
                return Outcome(moved_bytes, error.errno or errno.EIO, requests)
            except RuntimeError:  # what kvikio makes of errors of cuFile, without an errno
                return Outcome(moved_bytes, errno.EIO, requests)
            if count == 0:
                code = errno.EIO if job.request.is_write else END_OF_FILE
                return Outcome(moved_bytes, code, requests)
            moved_bytes += count
        return Outcome(moved_bytes, None, requests)

    def _open(self, file: StorageFile) -> Any:
        with self._lock:
            handle = self._handles.get(file)
            if handle is None:
                # By descriptor: a scratch file has no name, and a name may be another file's by now.
                path = f"/proc/self/fd/{file.buffered_descriptor}"
                handle = self._kvikio.CuFile(path, "r+" if file.is_writable else "r")
                self._handles[file] = handle
                weakref.finalize(file, handle.close).atexit = False
        return handle

    def _start_afresh(self) -> None:
        self._handles = weakref.WeakKeyDictionary()  # the parent's, like everything of CUDA
        super()._start_afresh()


def _is_on_device(memory: Any) -> bool:
    return isinstance(memory, torch.Tensor) and memory.device.type == "cuda"


def _import_kvikio() -> Any:
    try:
        return importlib.import_module("kvikio")
    except ImportError as error:
        reason = "the package kvikio is not installed (pip install kvikio-cu12)"
        raise EngineUnavailableError("gds", reason) from error
