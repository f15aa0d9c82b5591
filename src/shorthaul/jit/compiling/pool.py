"""Threads that each run one compiler at a time, and are gone when there is nothing left to compile.

A pool holds no thread that waits for work: one is started for a job while fewer than the limit run, and ends
when there is nothing left. Those that do what nobody waits for are nice, for good, because the system lets nobody
take that back: for urgent jobs there are others, up to the limit again, and nice ones make room as they come to
the end of a job. When the process exits, compilers are stopped and threads are joined. A forked child
starts with an empty pool, because it has none of its parent's threads: what it asks for is asked for anew.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import os
import threading
from collections.abc import Callable, Hashable
from multiprocessing import util

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
        """Do the work in this thread; what it raises is kept in `error`. `end` comes after it."""
        try:
            self._work()
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        """Let those go on who wait."""
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

    epoch: object

    def __init__(self, most_workers: Callable[[], int]) -> None:
        self._most_workers = most_workers
        self.start_afresh()

    def start_afresh(self) -> None:
        """Know of no job and no thread, as in a child that was just forked."""
        self._lock = PatientLock()
        self._jobs: dict[Hashable, Job] = {}
        self._urgent: collections.deque[Job] = collections.deque()
        self._calm: collections.deque[Job] = collections.deque()
        self._workers: dict[threading.Thread, bool] = {}  # and whether each is nice
        self.is_closed = False  # the process exits
        self.tell_news()  # after each job: while the epoch stays, nothing new is to be had

    def submit(
        self, key: Hashable, name: str, work: Callable[[], object], *, is_urgent: bool
    ) -> Job:
        """The job of this key, queued unless it is under way already.

        A job that has ended is forgotten with its key: who asks again has it done again. Urgent ones,
        which somebody waits for, go before the others, and not at a lower priority.
        """
        with self._lock:
            job = self._jobs.get(key)
            if job is not None and not is_urgent:
                return job
            if job is None:
                job = Job(name, work)
                if self.is_closed:
                    job.give_up(RuntimeError("the process is about to exit"))
                    return job
                self._jobs[key] = job
            else:
                waiting = next((each for each in (self._urgent, self._calm) if job in each), None)
                if waiting is None:  # it runs
                    return job
                waiting.remove(job)
            if is_urgent:
                self._urgent.appendleft(job)
            else:
                self._calm.append(job)
            self._start_worker(is_urgent)
            return job

    def _start_worker(self, is_urgent: bool) -> None:
        """One more for what was queued just now, unless there are enough; the caller holds the lock."""
        counted = [is_nice for is_nice in self._workers.values() if not (is_urgent and is_nice)]
        if len(counted) >= self._most_workers():
            return
        worker = threading.Thread(
            target=self._run_jobs,
            name="shorthaul-compiler",
            daemon=True,  # `close` joins it: the interpreter would wait for all that is queued
        )
        self._workers[worker] = False
        try:
            worker.start()
        except RuntimeError as error:  # no more threads are to be had, or the process exits
            del self._workers[worker]
            if not self._workers:
                self._give_up_all(error)

    def _give_up_all(self, error: BaseException) -> None:
        for job in (*self._urgent, *self._calm):
            job.give_up(error)
        self._urgent.clear()
        self._calm.clear()
        self._jobs.clear()
        self.tell_news()

    def tell_news(self) -> None:
        """Have everybody who waits for a kernel ask for it again."""
        self.epoch = object()

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
            dropped = (*self._urgent, *self._calm)
            self._urgent.clear()
            self._calm.clear()
            workers = tuple(self._workers)
        for job in dropped:
            job.give_up(RuntimeError("the process is about to exit"))
        for worker in workers:
            # Again and again: a compiler may have been about to start.
            while worker.is_alive():
                stop_compilers([worker.ident] if worker.ident is not None else [])
                worker.join(PATIENCE_SECONDS)

    def _run_jobs(self) -> None:
        worker = threading.current_thread()
        while True:
            with self._lock:
                job = self._take_job(worker)
                if job is None:
                    del self._workers[worker]
                    return
            job.run()
            with self._lock:
                for key in [key for key, each in self._jobs.items() if each is job]:
                    del self._jobs[key]
                self.tell_news()
            job.end()  # after the news: who waited shall find it

    def _take_job(self, worker: threading.Thread) -> Job | None:
        """What a worker does next, at the priority that this has; the caller holds the lock."""
        is_nice = self._workers[worker]
        if self._urgent and (not is_nice or all(self._workers.values())):
            return self._urgent.popleft()
        if not self._calm or len(self._workers) > self._most_workers():
            return None
        if not is_nice:
            self._workers[worker] = True
            # Of this thread alone, and of the compilers that it starts.
            thread = threading.get_native_id()
            with contextlib.suppress(OSError):
                now = os.getpriority(os.PRIO_PROCESS, thread)
                os.setpriority(os.PRIO_PROCESS, thread, min(19, now + NICENESS))
        return self._calm.popleft()


compilers = CompilePool(lambda: settings.compilers)
atexit.register(compilers.close)
os.register_at_fork(after_in_child=compilers.start_afresh)
# A worker of `multiprocessing` ends without what `atexit` has.
util.register_after_fork(compilers, lambda pool: util.Finalize(pool, pool.close, exitpriority=0))
