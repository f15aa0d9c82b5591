"""One thread that does jobs in the order in which they were submitted, and never keeps a process from ending.

>>> worker = Worker("adding")
>>> worker.submit(lambda: 1 + 1).result()
2
>>> worker.close()

(Python's own pools wait at exit for what their threads do; one that waits for another rank may wait long.)
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from shorthaul.interrupts import when_gone

Result = TypeVar("Result")


class Worker:
    """The thread begins with the first job and ends when nobody refers to the worker any more."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        when_gone(self, self._jobs.put, None)

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        """Have `job` done after what was submitted before."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=_work, args=(self._jobs,), name=f"shorthaul {self.name}", daemon=True
            )
            self._thread.start()
        future: Future[Result] = Future()
        self._jobs.put((job, future))
        return future

    def close(self, timeout_seconds: float | None = None) -> None:
        """End the thread after the job that it is doing; again is harmless."""
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join(timeout_seconds)


def _work(jobs: queue.SimpleQueue[Any]) -> None:
    while (item := jobs.get()) is not None:
        job, future = item
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)
        del item, job, future  # or what they hold would wait for the next
