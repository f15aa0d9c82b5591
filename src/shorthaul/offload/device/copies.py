"""Activations of GPU models on their way to pinned memory and back, beside the computation.

Each device has one stream for the way out and one for the way back, so that neither waits for the
other::

    compute   ... saves x ──mark──► goes on                                  waits ◄─┐  uses x
    out            waits for mark ── copies x to the host ──mark (arrived)           │
    disk                                                   writes, later reads       │
    back                                                        copies x back ──mark─┘

Four rules, each one a test:

- a copy out starts only behind what computes the tensor;
- the device's memory is given out again only when the copy out is over, and the host waits for
  nothing: PyTorch's allocator is told (`record_stream`);
- a host buffer belongs to the copy until its mark is passed, whoever else lets go of it;
- who uses what came back waits on the device, by its own stream, not on the host.

Nothing here runs in a thread of its own: `settle` looks which marks are passed, and hands on what
has arrived (to the storage engine, which writes it). The caller holds a lock, as the store does.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from shorthaul.meter import record_move
from shorthaul.offload.device.streams import CudaStreams, StreamBackend

WHY = "activations"


@dataclass(eq=False)
class CopyOut:
    """A tensor on its way to the host. `on_arrived` is called once, when its bytes are there."""

    device: torch.device
    target: torch.Tensor | None  # host memory; none once the bytes are there
    mark: Any
    on_arrived: Callable[[], None] | None

    @property
    def has_arrived(self) -> bool:
        """Whether `on_arrived` was called: the bytes are in host memory."""
        return self.target is None


@dataclass(eq=False)
class CopyBack:
    """A tensor on its way back to its device."""

    tensor: torch.Tensor  # on the device
    mark: Any
    source: torch.Tensor | None  # host memory; none once it is copied
    _backend: StreamBackend

    def use(self) -> torch.Tensor:
        """The tensor, for the stream that computes now: what it does next waits for the copy."""
        _use(self._backend, self.tensor, self.mark)
        return self.tensor


def _use(backend: StreamBackend, tensor: torch.Tensor, mark: Any) -> None:
    stream = backend.current_stream(tensor.device)
    backend.wait_event(stream, mark)
    # The memory is the copying stream's: without this it could be given out again while the
    # computation still reads it.
    backend.hold(tensor, stream)


class DeviceCopier:
    """Copies between devices and pinned host memory, on streams of its own."""

    def __init__(self, backend: StreamBackend | None = None) -> None:
        self.backend: StreamBackend = backend or CudaStreams()
        self._out: dict[torch.device, Any] = {}
        self._back: dict[torch.device, Any] = {}
        self._leaving: dict[torch.device, collections.deque[CopyOut]] = {}
        self._returning: dict[torch.device, collections.deque[CopyBack]] = {}
        self.leaving_bytes = self.returning_bytes = 0  # under way, as far as `settle` knows
        # Forgotten with copies under way, it would give their host memory to others too early.
        self._ending = weakref.finalize(
            self, _wait_for_all, self.backend, self._leaving, self._returning
        )

    def copy_out(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        on_arrived: Callable[[], None] | None = None,
    ) -> CopyOut:
        """Copy a tensor on a device to pinned memory of the same size, when it is computed.

        `source` may be let go of at once. `on_arrived` is called from `settle` or `wait`.
        """
        _require_equal_size(source, target)
        device = source.device
        backend = self.backend
        stream = self._stream(self._out, device)
        computed = backend.record_event(backend.current_stream(device))
        backend.wait_event(stream, computed)
        backend.copy(target, source, stream)
        backend.hold(source, stream)
        copy = CopyOut(device, target, backend.record_event(stream), on_arrived)
        self._leaving.setdefault(device, collections.deque()).append(copy)
        self.leaving_bytes += target.nbytes
        record_move(device.type, "memory", source.nbytes, WHY)
        return copy

    def copy_back(self, source: torch.Tensor, device: torch.device) -> CopyBack:
        """Copy bytes in pinned memory to a device; `use` gives them to whoever computes there.

        `source` may be let go of at once.
        """
        backend = self.backend
        stream = self._stream(self._back, device)
        tensor = backend.empty(source.nbytes, device, stream)
        backend.copy(tensor, source, stream)
        copy = CopyBack(tensor, backend.record_event(stream), source, backend)
        self._returning.setdefault(device, collections.deque()).append(copy)
        self.returning_bytes += source.nbytes
        record_move("memory", device.type, source.nbytes, WHY)
        return copy

    def use(self, tensor: torch.Tensor, mark: Any) -> None:
        """What the stream that computes now does next with `tensor` waits for the copy before `mark`."""
        _use(self.backend, tensor, mark)

    def settle(self) -> None:
        """Hand on what has arrived, and let go of host memory that is copied."""
        for leaving in self._leaving.values():  # marks of one stream are passed in their order
            while leaving and self.backend.is_done(leaving[0].mark):
                self._arrive(leaving.popleft())
        for returning in self._returning.values():
            while returning and self.backend.is_done(returning[0].mark):
                copy = returning.popleft()
                self.returning_bytes -= copy.tensor.nbytes
                copy.source = None

    def wait(self, copy: CopyOut) -> None:
        """Return when the bytes of `copy` are in host memory; those before it are handed on too."""
        if copy.has_arrived:
            return
        self.backend.synchronize(copy.mark)
        leaving = self._leaving[copy.device]
        while not copy.has_arrived:
            self._arrive(leaving.popleft())

    def wait_for_oldest(self) -> bool:
        """Wait for the copy to the host that was begun first, of any device; false without one."""
        for leaving in self._leaving.values():
            if leaving:
                self.wait(leaving[0])
                return True
        return False

    def close(self) -> None:
        """Wait for everything under way, and hand on what arrives; again is harmless."""
        while self.wait_for_oldest():
            pass
        self._ending()
        self.returning_bytes = 0

    def _arrive(self, copy: CopyOut) -> None:
        target, copy.target = copy.target, None
        on_arrived, copy.on_arrived = copy.on_arrived, None
        self.leaving_bytes -= 0 if target is None else target.nbytes
        if on_arrived is not None:
            on_arrived()

    def _stream(self, streams: dict[torch.device, Any], device: torch.device) -> Any:
        if device not in streams:
            streams[device] = self.backend.make_stream(device)
        return streams[device]


def _wait_for_all(
    backend: StreamBackend,
    leaving: dict[torch.device, collections.deque[CopyOut]],
    returning: dict[torch.device, collections.deque[CopyBack]],
) -> None:
    copies: list[CopyOut | CopyBack] = [each for queue in leaving.values() for each in queue]
    copies += [each for queue in returning.values() for each in queue]
    for copy in copies:
        backend.synchronize(copy.mark)
    leaving.clear()
    returning.clear()


def _require_equal_size(source: torch.Tensor, target: torch.Tensor) -> None:
    if source.nbytes != target.nbytes:
        raise ValueError(
            f"a copy to the host needs {source.nbytes:,} bytes, but its target has {target.nbytes:,}"
        )
