"""The few things that copies between a device and the host need of CUDA streams and events.

Written down as an interface, so that the order in which they happen can be tested without a GPU.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch


class StreamBackend(Protocol):
    """Streams do what they are told in order; events are marks in them."""

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies where these streams work."""

    def current_stream(self, device: torch.device) -> Any:
        """The stream on which PyTorch computes now, in this thread."""

    def make_stream(self, device: torch.device) -> Any:
        """A stream beside it."""

    def record_event(self, stream: Any) -> Any:
        """A mark behind everything that `stream` has been told so far."""

    def wait_event(self, stream: Any, event: Any) -> None:
        """Have `stream` do nothing more until the mark is passed. The host goes on."""

    def is_done(self, event: Any) -> bool:
        """Whether the mark is passed."""

    def synchronize(self, event: Any) -> None:
        """Return when the mark is passed."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        """Have `stream` copy. The host's side must be pinned, or the host waits."""

    def empty(self, length_bytes: int, device: torch.device, stream: Any) -> torch.Tensor:
        """Bytes on the device that `stream` may use at once."""

    def hold(self, tensor: torch.Tensor, stream: Any) -> None:
        """Keep the tensor's memory from being given out again before `stream` is done with it.

        Done means: with everything it has been told when the tensor is let go.
        """


class CudaStreams:
    """PyTorch's own streams and events."""

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies on a CUDA device."""
        return tensor.device.type == "cuda"

    def current_stream(self, device: torch.device) -> Any:
        """The stream on which PyTorch computes now."""
        return torch.cuda.current_stream(device)

    def make_stream(self, device: torch.device) -> Any:
        """A stream beside it."""
        return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record_event(self, stream: Any) -> Any:
        """A mark in `stream`."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def wait_event(self, stream: Any, event: Any) -> None:
        """Have `stream` wait."""
        stream.wait_event(event)

    def is_done(self, event: Any) -> bool:
        """Whether the mark is passed."""
        return bool(event.query())

    def synchronize(self, event: Any) -> None:
        """Wait for the mark."""
        event.synchronize()

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        """Have `stream` copy."""
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)

    def empty(self, length_bytes: int, device: torch.device, stream: Any) -> torch.Tensor:
        """Bytes on the device, from the memory of `stream`."""
        with torch.cuda.stream(stream):
            return torch.empty(length_bytes, dtype=torch.uint8, device=device)

    def hold(self, tensor: torch.Tensor, stream: Any) -> None:
        """PyTorch's `record_stream`."""
        tensor.record_stream(stream)
