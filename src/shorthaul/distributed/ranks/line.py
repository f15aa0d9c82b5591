"""A way between all ranks that belongs to one user of it: a process group and a thread of its own.

What is exchanged never meets the collectives of a model, which have other groups, and the caller
waits for a thread and not inside a collective, so that Ctrl-C is obeyed at once.

>>> from shorthaul.distributed.ranks.world import World
>>> Line(World(0, 1)).run("a test", lambda wire: wire.gather_texts("hello"))
['hello']
"""

from __future__ import annotations

import datetime
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from shorthaul.distributed.ranks.faults import FaultFinder
from shorthaul.distributed.ranks.wire import Wire
from shorthaul.distributed.ranks.world import Peer, World
from shorthaul.errors import ExchangeError, RankSetupError

Result = TypeVar("Result")
Work = Callable[[Wire], Result]


class Line:
    """Runs work that exchanges, one after the other, in the order in which it was submitted.

    All ranks make their lines in the same order: making one is a collective.
    """

    def __init__(
        self,
        world: World,
        *,
        timeout_seconds: float = 300.0,
        peers: Sequence[Peer] = (),
        name: str = "",
    ) -> None:
        self.world, self.name = world, name
        self.timeout_seconds = timeout_seconds
        self._group: dist.ProcessGroup | None = None
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if world.ranks == 1:
            self.wire = Wire(world, None, None)
            return
        if not dist.is_gloo_available():
            raise RankSetupError(
                "this PyTorch was built without gloo, by which rows are exchanged."
            )
        limit = datetime.timedelta(seconds=timeout_seconds)
        known = peers or [Peer(rank, "", "", 0, "", "") for rank in range(world.ranks)]
        faults = FaultFinder(_find_store(), known, world.rank, timeout_seconds, name)
        try:
            self._group = dist.new_group(backend="gloo", timeout=limit)
        except RuntimeError as error:
            raise faults.explain(error, f"setting up {name}") from error
        self.wire = Wire(world, self._group, faults)
        self._thread = threading.Thread(
            target=_run_jobs, args=(self._jobs, self.wire), name=f"shorthaul {name}", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._jobs.put, None)

    def know(self, peers: Sequence[Peer]) -> None:
        """Who the ranks are, for errors."""
        if self.wire.faults is not None:
            self.wire.faults.peers = tuple(peers)

    def submit(self, where: str, work: Work[Result]) -> Future[Result]:
        """Have `work` done after what was submitted before; `where` is told in errors."""
        future: Future[Result] = Future()
        job = (where, work, future)
        if self._thread is None:
            _run_job(job, self.wire)
        else:
            self._jobs.put(job)
        return future

    def run(self, where: str, work: Work[Result]) -> Result:
        """Have `work` done, and wait for it."""
        return self.submit(where, work).result()

    def close(self) -> None:
        """End the thread and the group, without waiting for other ranks."""
        if self._thread is not None and self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join(self.timeout_seconds)
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None


def _run_jobs(jobs: queue.SimpleQueue[Any], wire: Wire) -> None:
    broken: BaseException | None = None
    while (job := jobs.get()) is not None:
        if broken is not None:
            job[2].set_exception(broken)
            continue
        broken = _run_job(job, wire)
        del job


def _run_job(job: tuple[str, Work[Any], Future[Any]], wire: Wire) -> BaseException | None:
    """Do it; the error after which nothing can be exchanged any more, if there was one."""
    where, work, future = job
    wire.where, wire.is_agreed = where, False
    try:
        with torch.no_grad():
            future.set_result(work(wire))
    except BaseException as error:
        broken = None if wire.is_agreed or wire.group is None else _break(wire, error)
        future.set_exception(error)
        return broken
    return None


def _break(wire: Wire, error: BaseException) -> BaseException:
    """Leave the other ranks, who may wait for this one in the middle of an exchange."""
    assert wire.faults is not None
    if not isinstance(error, ExchangeError):
        wire.faults.confess(error, wire.where)
    backend: Any = wire.group
    backend.abort()
    return error


def _find_store() -> Any:
    """The store of the default process group: torch's own, nothing else listens."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
