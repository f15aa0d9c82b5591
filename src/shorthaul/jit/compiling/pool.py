"""Threads that each run one compiler at a time, and are gone when there is nothing left to compile.

A pool holds no thread that waits for work: one is started for a job while fewer than the limit run, and ends
when the queue is empty. When the process exits, compilers are stopped and threads are joined. A forked child
starts with an empty pool, because it has none of its parent's threads: what it asks for is asked for anew.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import os
import threading
from collections.abc import Callable, Hashable

from shorthaul.interrupts import PATIENCE_SECONDS, PatientLock
from shorthaul.jit.toolchain import stop_compilers
from shorthaul.settings import settings

# Added to the niceness of compilers that nobody waits for: who computes meanwhile goes first.
NICENESS = 10


class Job:
    """One kernel on its way: queued, under way, done or failed."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._work = work
        self._done = threading.Event()

    @property
    def is_done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._done.is_set()

    def run(self) -> None:
        """Do the work in this thread; what it raises is kept in `error`."""
        try:
            self._work()
        except BaseException as error:
            self.error = error
        finally:
            self._done.set()

    def give_up(self, error: BaseException) -> None:
        """End without having run."""
        self.error = error
        self._done.set()

    def wait(self) -> None:
        """Return when it has ended; an interrupt is obeyed at once, and the job goes on."""
        while not self._done.wait(PATIENCE_SECONDS):
            pass


class CompilePool:
    """Jobs by key, at most `most_workers()` of them at a time."""

    def __init__(self, most_workers: Callable[[], int]) -> None:
        self._most_workers = most_workers
        self.start_afresh()

    def start_afresh(self) -> None:
        """Know of no job and no thread, as in a child that was just forked."""
        self._lock = PatientLock()
        self._jobs: dict[Hashable, Job] = {}
        self._queue: collections.deque[Job] = collections.deque()
        self._workers: set[threading.Thread] = set()
        self.is_closed = False  # the process exits
        self.epoch = (
            object()
        )  # another one after each job: while it stays, nothing new is to be had

    def submit(
        self, key: Hashable, name: str, work: Callable[[], object], *, is_urgent: bool
    ) -> Job:
        """The job of this key, queued unless it is under way already.

        A job that has ended is forgotten with its key: who asks again has it done again. Urgent ones,
        which somebody waits for, go before the others, and not at a lower priority.
        """
        with self._lock:
            job = self._jobs.get(key)
            if job is not None:
                if is_urgent and job in self._queue:
                    self._queue.remove(job)
                    self._queue.appendleft(job)
                return job
            job = Job(name, work)
            if self.is_closed:
                job.give_up(RuntimeError("the process is about to exit"))
                return job
            self._jobs[key] = job
            if is_urgent:
                self._queue.appendleft(job)
            else:
                self._queue.append(job)
            if len(self._workers) < self._most_workers():
                worker = threading.Thread(
                    target=self._run_jobs,
                    args=(is_urgent,),
                    name="shorthaul-compiler",
                    daemon=True,  # `close` joins it: the interpreter would wait for all that is queued
                )
                self._workers.add(worker)
                try:
                    worker.start()
                except RuntimeError as error:  # no more threads are to be had, or the process exits
                    self._workers.discard(worker)
                    if not self._workers:
                        self._queue.remove(job)
                        del self._jobs[key]
                        job.give_up(error)
            return job

    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._jobs

    def under_way(self) -> tuple[Job, ...]:
        """The jobs that have not ended."""
        with self._lock:
            return tuple(self._jobs.values())

    def close(self) -> None:
        """Drop what is queued, stop the compilers that run, and join the threads."""
        with self._lock:
            self.is_closed = True
            dropped = tuple(self._queue)
            self._queue.clear()
            workers = tuple(self._workers)
        for job in dropped:
            job.give_up(RuntimeError("the process is about to exit"))
        for worker in workers:
            # Again and again: a compiler may have been about to start.
            while worker.is_alive():
                stop_compilers([worker.ident] if worker.ident is not None else [])
                worker.join(PATIENCE_SECONDS)

    def _run_jobs(self, is_urgent: bool) -> None:
        if not is_urgent:
            # Of this thread alone, and of the compilers that it starts.
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            with self._lock:
                if not self._queue:
                    self._workers.discard(threading.current_thread())
                    return
                job = self._queue.popleft()
            job.run()
            with self._lock:
                for key in [key for key, each in self._jobs.items() if each is job]:
                    del self._jobs[key]
                self.epoch = object()


compilers = CompilePool(lambda: settings.compilers)
atexit.register(compilers.close)
os.register_at_fork(after_in_child=compilers.start_afresh)
