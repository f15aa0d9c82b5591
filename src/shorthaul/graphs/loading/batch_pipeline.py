"""Batches made ahead of the one that is trained on: one thread samples, the next gathers.

::

    plan --(sampling thread)--> samples --(gathering thread)--> batches --> the training loop

Both channels are bounded, so a slow loop holds everything up and memory stays where it is. An error
travels down the same way as a batch would and comes out in the loop, after the batches before it.
The kernels run without the GIL, so the three work at the same time.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch

from shorthaul.graphs.loading.channel import Channel, ClosedError
from shorthaul.meter import record_stall

Drawn = TypeVar("Drawn")
Batch = TypeVar("Batch")


class _Failure:
    """An error on its way to the training loop."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _End:
    """Nothing comes after it."""


class BatchPipeline(Generic[Drawn, Batch]):
    """`count` batches, `draw(n)` in one thread and `complete(drawn)` in another.

    At most `room_drawn` and `room_batches` of them wait to be taken. `close` ends both threads; it is
    called at the end, when the loop is left, and at exit.
    """

    def __init__(
        self,
        count: int,
        draw: Callable[[int], Drawn],
        complete: Callable[[Drawn], Batch],
        *,
        room_drawn: int,
        room_batches: int,
    ) -> None:
        self._drawn: Channel[Drawn | _Failure | _End] = Channel(room_drawn)
        self._batches: Channel[Batch | _Failure | _End] = Channel(room_batches)
        self._threads = (
            threading.Thread(
                target=_run_drawing,
                args=(count, draw, self._drawn),
                name="shorthaul sampling",
                daemon=True,
            ),
            threading.Thread(
                target=_run_completing,
                args=(complete, self._drawn, self._batches),
                name="shorthaul gathering",
                daemon=True,
            ),
        )
        _running.add(self)
        # Whoever forgets a pipeline leaves no thread waiting forever.
        weakref.finalize(self, _close_channels, self._drawn, self._batches)
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[Batch]:
        try:
            while True:
                started = time.perf_counter()
                item = self._batches.get()
                record_stall(time.perf_counter() - started, "mini-batches")
                if isinstance(item, _End):
                    return
                if isinstance(item, _Failure):
                    raise item.error
                yield item
                del item  # or its memory would wait for the next batch
        finally:
            self.close()

    def close(self) -> None:
        """End both threads and wait for them; again is harmless."""
        _close_channels(self._drawn, self._batches)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        _running.discard(self)


def _close_channels(*channels: Channel[Any]) -> None:
    for each in channels:
        each.close()


def _run_drawing(
    count: int, draw: Callable[[int], Drawn], drawn: Channel[Drawn | _Failure | _End]
) -> None:
    def run() -> None:
        for number in range(count):
            drawn.put(draw(number))

    _run(run, drawn)


def _run_completing(
    complete: Callable[[Drawn], Batch],
    drawn: Channel[Drawn | _Failure | _End],
    batches: Channel[Batch | _Failure | _End],
) -> None:
    def run() -> None:
        while True:
            item = drawn.get()
            if isinstance(item, _End):
                return
            if isinstance(item, _Failure):
                raise item.error
            batches.put(complete(item))
            del item

    _run(run, batches)


def _run(work: Callable[[], None], target: Channel[Batch | _Failure | _End]) -> None:
    """Do the work of one thread, then tell the next one how it ended."""
    try:
        last: _Failure | _End = _End()
        try:
            with torch.no_grad():
                work()
        except ClosedError:
            raise
        except BaseException as error:
            last = _Failure(error)
        target.put(last)
    except ClosedError:
        return  # nobody waits any more


# Threads must not be inside a kernel, or wait for the GIL, when the interpreter is taken down.
_running: weakref.WeakSet[BatchPipeline[Any, Any]] = weakref.WeakSet()


@atexit.register
def _close_running() -> None:
    for pipeline in list(_running):
        pipeline.close()
