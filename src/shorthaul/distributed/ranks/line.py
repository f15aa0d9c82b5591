"""A way between all ranks that belongs to one user of it: a process group and a thread of its own.

What is exchanged never meets the collectives of a model, which have other groups, and the caller
waits for a thread and not inside a collective, so that Ctrl-C is obeyed at once.

>>> from shorthaul.distributed.ranks.world import World
>>> Line(World(0, 1)).run("a test", lambda wire: wire.gather_texts("hello"))
['hello']
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerError
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from shorthaul.distributed.ranks.faults import FaultFinder
from shorthaul.distributed.ranks.wire import Wire
from shorthaul.distributed.ranks.worker import Worker
from shorthaul.distributed.ranks.world import Peer, World
from shorthaul.errors import ExchangeError, RankSetupError
from shorthaul.interrupts import when_gone

Result = TypeVar("Result")
Work = Callable[[Wire], Result]
# What is told of one line's faults is not taken for another's of the same name: all ranks count alike.
_numbers = itertools.count()
_forgotten: deque[list[dist.ProcessGroup]] = deque()  # groups of lines that are gone


class Line:
    """Runs work that exchanges, one after the other, in the order in which it was submitted.

    All ranks make their lines in the same order: making one is a collective. Closing one, or forgetting it, is
    not: its thread ends when all that was submitted is done, and its group when the next line is made.
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
        self._groups: list[dist.ProcessGroup] = []
        self._worker = Worker(name)
        when_gone(self, _forgotten.append, self._groups)
        self._is_closed = False
        self._broken: BaseException | None = None
        self.wire = Wire(world, None, None)
        if world.ranks == 1:
            return
        _give_up_forgotten()
        if not dist.is_gloo_available():
            raise RankSetupError(
                "this PyTorch was built without gloo, by which rows are exchanged."
            )
        limit = datetime.timedelta(seconds=timeout_seconds)
        known = peers or [Peer(rank, "", "", 0, "", "") for rank in range(world.ranks)]
        told_as = f"{next(_numbers)}, {name}"
        faults = FaultFinder(_find_store(), known, world.rank, timeout_seconds, told_as)
        # Its calls to the store may never come back, and Ctrl-C is not obeyed within them.
        made = self._worker.submit(functools.partial(_make_group, self._groups, limit))
        try:
            made.result(timeout_seconds + faults.grace_seconds)
        except (RuntimeError, NoAnswerError) as error:
            raise faults.explain(error, f"setting up {name}") from error
        self.wire = Wire(world, self._groups[0], faults)

    def know(self, peers: Sequence[Peer]) -> None:
        """Who the ranks are, for errors."""
        if self.wire.faults is not None:
            self.wire.faults.peers = tuple(peers)

    def submit(self, where: str, work: Work[Result]) -> Future[Result]:
        """Have `work` done after what was submitted before; `where` is told in errors."""
        self._require_open()
        return self._worker.submit(functools.partial(self._do, where, work))

    def run(self, where: str, work: Work[Result]) -> Result:
        """Have `work` done, and wait for it."""
        if self.world.ranks == 1:
            self._require_open()
            return self._do(where, work)
        return self.submit(where, work).result()

    def close(self) -> None:
        """Take no more work; the thread ends after that which was taken, and is not waited for."""
        self._is_closed = True
        self._worker.close(0)

    def _require_open(self) -> None:
        if self._is_closed:
            raise RankSetupError(
                f"the {self.name.partition(',')[0]} was closed, and is asked for more.\n"
                "  Close it after its last use, or make another on all ranks."
            )

    def _do(self, where: str, work: Work[Result]) -> Result:
        """After an error that other ranks did not have at the same place, nothing is exchanged any more."""
        if self._broken is not None:
            raise self._broken
        wire = self.wire
        wire.where, wire.is_agreed = where, False
        try:
            with torch.no_grad():
                return work(wire)
        except BaseException as error:
            if wire.faults is not None and not wire.is_agreed:
                self._broken = error
                if not isinstance(error, ExchangeError):
                    wire.faults.confess(error, where)
                backend: Any = wire.group
                backend.abort()  # others may wait for this rank in the middle of an exchange
            raise


def _make_group(groups: list[dist.ProcessGroup], limit: datetime.timedelta) -> None:
    groups.append(dist.new_group(backend="gloo", timeout=limit))


def _give_up_forgotten() -> None:
    """Destroy the groups of lines that nobody refers to any more.

    That is for the thread that makes lines: one that is in torch's code while Python ends brings the
    process down.
    """
    while _forgotten:
        for group in _forgotten.popleft():
            with contextlib.suppress(ValueError, RuntimeError, KeyError, AssertionError):
                dist.destroy_process_group(group)


def _find_store() -> Any:
    """The store of the default process group: torch's own, nothing else listens."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
