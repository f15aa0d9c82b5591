"""Streams and events that do nothing by themselves: a test says when a stream gets on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch


@dataclass(eq=False)
class Event:
    """A mark in a stream."""

    name: str
    is_passed: bool = False


@dataclass(eq=False)
class Stream:
    """What it was told and has not done."""

    name: str
    waiting: deque[tuple[str, Callable[[], bool]]] = field(default_factory=deque)

    def run(self) -> None:
        """Do what can be done, in order; stop at a mark that another stream has not passed."""
        while self.waiting and self.waiting[0][1]():
            self.waiting.popleft()


class RecordedStreams:
    """Keeps the rules of CUDA, and a log of what was asked in which order.

    The memory of a tensor that is copied is looked at when the stream gets there, not before: a
    buffer that was reused too early shows as wrong bytes.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.takes_all = True
        self.compute = Stream("compute")
        self.streams: list[Stream] = [self.compute]
        self.held: list[tuple[int, str]] = []
        self.events = 0

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        return tensor.requires_grad or self.takes_all

    def current_stream(self, device: torch.device) -> Stream:
        return self.compute

    def make_stream(self, device: torch.device) -> Stream:
        self.streams.append(Stream(f"side {len(self.streams)}"))
        return self.streams[-1]

    def record_event(self, stream: Stream) -> Event:
        self.events += 1
        event = Event(f"event {self.events}")
        self.log.append(f"{stream.name}: record {event.name}")

        def pass_mark() -> bool:
            event.is_passed = True
            return True

        stream.waiting.append(("record", pass_mark))
        return event

    def wait_event(self, stream: Stream, event: Event) -> None:
        self.log.append(f"{stream.name}: wait for {event.name}")
        stream.waiting.append(("wait", lambda: event.is_passed))

    def is_done(self, event: Event) -> bool:
        return event.is_passed

    def synchronize(self, event: Event) -> None:
        self.log.append(f"host: wait for {event.name}")
        self.run()
        assert event.is_passed, "the host would wait forever"

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        self.log.append(f"{stream.name}: copy")

        def move() -> bool:
            target.copy_(source)
            return True

        stream.waiting.append(("copy", move))

    def empty(self, length_bytes: int, device: torch.device, stream: Stream) -> torch.Tensor:
        self.log.append(f"{stream.name}: allocate")
        return torch.zeros(length_bytes, dtype=torch.uint8)

    def hold(self, tensor: torch.Tensor, stream: Stream) -> None:
        self.log.append(f"{stream.name}: hold")
        self.held.append((tensor.data_ptr(), stream.name))

    def compute_next(self, work: Callable[[], object]) -> None:
        """Tell the computing stream to do something."""
        self.compute.waiting.append(("work", lambda: (work(), True)[1]))

    def run(self) -> None:
        """Let all streams get on until none can."""
        for _ in range(1 + sum(len(each.waiting) for each in self.streams)):
            for stream in self.streams:
                stream.run()
