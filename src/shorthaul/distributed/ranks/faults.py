"""Who is to blame when an exchange fails: ranks that can still speak tell the store, those that do not are named.

A collective that fails says no more than "connection closed" or "timed out". Here every rank that sees
a failure writes so into torch's own store and looks for the others' words for a moment. A rank whose process
has ended, or from which nothing comes, is the one.

A call to a store never comes back when the process that holds it hangs or is cut off, whatever time-out it was
given. So a thread makes such calls, and is left behind when it is not back in time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as NoAnswerError
from typing import Protocol

from shorthaul.distributed.ranks.worker import Worker
from shorthaul.distributed.ranks.world import Peer
from shorthaul.errors import ExchangeError, PeerError

GRACE_SECONDS = 5.0
_LOOK_SECONDS = 0.02
_NO_STORE = (
    " torch's store did not answer, so ranks that live could not say so: look first at the process that "
    "holds it, rank 0 or torchrun on the first machine."
)
_RESUME = (
    "The first error in that rank's log is the cause. Start all ranks again from the last checkpoint; "
    "torchrun --max-restarts does it by itself."
)


class Store(Protocol):
    """What is needed of a store of `torch.distributed`."""

    def set(self, key: str, value: str) -> None:
        """Write."""

    def get(self, key: str) -> bytes:
        """Read."""

    def check(self, keys: list[str]) -> bool:
        """Whether they are there."""


class FaultFinder:
    """Makes the error of one rank from a failed collective and from what other ranks say."""

    def __init__(
        self, store: Store, peers: Sequence[Peer], rank: int, timeout_seconds: float, line: str
    ) -> None:
        self.store, self.peers, self.rank = store, tuple(peers), rank
        self.timeout_seconds, self.line = timeout_seconds, line

    def explain(self, error: BaseException, where: str) -> ExchangeError:
        """The error that names rank, parts, place, who is to blame, and what to do."""
        said = str(error).lower()
        is_late = isinstance(error, NoAnswerError) or "timed out" in said or "timeout" in said
        what = (
            f"nothing came within {self.timeout_seconds:g} s"
            if is_late
            else "a connection between ranks was lost"
        )
        told, has_store = self._hear_others(where)
        me = self.peers[self.rank]
        confessed = [
            f"{self.peers[rank].describe()} had an error: {said['error']}"
            for rank, said in sorted(told.items())
            if said["error"]
        ]
        if confessed:
            what = "another rank had an error"
            return PeerError(what, self.rank, me.parts, where, confessed, _RESUME)
        blamed = []
        for peer in self.peers:
            if peer.rank == self.rank or peer.rank in told:
                continue
            if peer.is_gone(me):
                blamed.append(f"{peer.describe()} is no longer running")
            else:
                blamed.append(
                    f"{peer.describe()} gave no sign of life: it died, hangs, is cut off, or is slower than "
                    f"{self.timeout_seconds:g} s"
                )
        remedy = _RESUME
        if not blamed:
            blamed = [
                f"{self.peers[rank].describe()} saw it {said['where']}"
                for rank, said in sorted(told.items())
            ]
            remedy = (
                "All ranks live, so the network between them was cut, or one left and came back: "
                f"look there, then start again from the last checkpoint. torch said: {_first_line(error)}"
            )
        elif is_late:
            remedy += " A rank that is only slow needs a larger timeout_seconds."
        if blamed and not has_store:
            remedy += _NO_STORE
        return ExchangeError(what, self.rank, me.parts, where, blamed, remedy)

    def confess(self, error: BaseException, where: str) -> None:
        """Tell all others of an error of this rank's own, which keeps it from going on."""
        self._talk(lambda: self._say(where, f"{type(error).__name__}: {error}"))

    def _say(self, where: str, error: str) -> None:
        self.store.set(self._key(self.rank), json.dumps({"where": where, "error": error}))

    def _hear_others(self, where: str) -> tuple[dict[int, dict[str, str]], bool]:
        """What the other ranks say within the time of grace, and whether the store answered."""
        told: dict[int, dict[str, str]] = {}
        others = [each for each in self.peers if each.rank != self.rank]

        def listen() -> None:
            self._say(where, "")
            deadline = time.monotonic() + self.grace_seconds
            while len(told) < len(others):
                for each in others:
                    if each.rank not in told and self.store.check([self._key(each.rank)]):
                        told[each.rank] = json.loads(self.store.get(self._key(each.rank)))
                silent = [each for each in others if each.rank not in told]
                is_clear = all(each.is_gone(self.peers[self.rank]) for each in silent)
                if is_clear or time.monotonic() > deadline:
                    break
                time.sleep(_LOOK_SECONDS)

        has_store = self._talk(listen)
        return dict(told), has_store

    def _talk(self, calls: Callable[[], None]) -> bool:
        """Make calls to the store in a thread; whether they ended, and in time."""
        try:
            Worker("asking the store").submit(calls).result(2 * self.grace_seconds)
        except (NoAnswerError, RuntimeError, OSError, ValueError, KeyError):
            return False
        return True

    @property
    def grace_seconds(self) -> float:
        """How long others may take to say what they know."""
        return min(GRACE_SECONDS, self.timeout_seconds)

    def _key(self, rank: int) -> str:
        return f"shorthaul/fault/{self.line}/{rank}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
