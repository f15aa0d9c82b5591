"""Batches that come to a GPU beside what is computed there: on a stream of their own, with a mark behind each.

::

    gathering thread    lane:  batch 0 -> mark | batch 1 -> mark | ...
    training loop       its stream:    waits for mark 0, step 0 | waits for mark 1, step 1 | ...

A thread's streams are not those of another, so without this a step on a stream of its own would read
rows that are still on their way. The memory of a batch belongs to the lane: PyTorch is told who reads
it, so that the lane does not write the next batch there too early.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import torch

Drawn = TypeVar("Drawn")
Batch = TypeVar("Batch")


class Marked(NamedTuple, Generic[Batch]):
    """A batch that is on its way, and what is passed when it is there."""

    batch: Batch
    mark: torch.cuda.Event


class DeviceLane:
    """The stream on which one loader's batches come to a GPU; made by the thread that will use them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # Tables may have parts on the device whose copies were told to the stream of this thread.
        self.stream.wait_stream(torch.cuda.current_stream(device))

    def bring(self, complete: Callable[[Drawn], Batch], drawn: Drawn) -> Marked[Batch]:
        """The batch that `complete` makes of what was drawn, told to the lane; in any thread."""
        with torch.cuda.stream(self.stream):
            batch = complete(drawn)
        return Marked(batch, self.stream.record_event())

    def hand_over(self, marked: Marked[Batch]) -> Batch:
        """The batch, for the stream on which this thread computes now; the host does not wait."""
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(marked.mark)
        for tensor in find_device_tensors(marked.batch):
            tensor.record_stream(stream)
        return marked.batch


def find_device_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every CUDA tensor in a batch, its blocks and mappings.

    >>> [*find_device_tensors([torch.zeros(1)])]
    []
    """
    if isinstance(value, torch.Tensor):
        if value.device.type == "cuda":
            yield value
    elif isinstance(value, Mapping):
        yield from find_device_tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from find_device_tensors(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from find_device_tensors(getattr(value, field.name))
