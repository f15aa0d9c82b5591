"""Who is to blame when an exchange fails: ranks that can still speak tell the store, those that do not are named.

A collective that fails says no more than "connection closed" or "timed out". Here every rank that sees
a failure writes so into torch's own store and looks for the others' words for a moment. A rank whose process
has ended, or from which nothing comes, is the one.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from typing import Protocol

from shorthaul.distributed.ranks.world import Peer
from shorthaul.errors import ExchangeError, PeerError

GRACE_SECONDS = 5.0
_LOOK_SECONDS = 0.02
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
        is_late = "timed out" in str(error).lower() or "timeout" in str(error).lower()
        what = (
            f"nothing came within {self.timeout_seconds:g} s"
            if is_late
            else "a connection between ranks was lost"
        )
        told = self._hear_others(where)
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
                    f"{peer.describe()} gave no sign of life: it died, hangs, or is slower than "
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
        return ExchangeError(what, self.rank, me.parts, where, blamed, remedy)

    def confess(self, error: BaseException, where: str) -> None:
        """Tell all others of an error of this rank's own, which keeps it from going on."""
        with contextlib.suppress(RuntimeError, OSError):
            self._say(where, f"{type(error).__name__}: {error}")

    def _say(self, where: str, error: str) -> None:
        self.store.set(self._key(self.rank), json.dumps({"where": where, "error": error}))

    def _hear_others(self, where: str) -> dict[int, dict[str, str]]:
        """What the other ranks say within the time of grace; empty where there is no store any more."""
        told: dict[int, dict[str, str]] = {}
        others = [each for each in self.peers if each.rank != self.rank]
        try:
            self._say(where, "")
            deadline = time.monotonic() + min(GRACE_SECONDS, self.timeout_seconds)
            while len(told) < len(others):
                for each in others:
                    if each.rank not in told and self.store.check([self._key(each.rank)]):
                        told[each.rank] = json.loads(self.store.get(self._key(each.rank)))
                silent = [each for each in others if each.rank not in told]
                is_clear = all(each.is_gone(self.peers[self.rank]) for each in silent)
                if is_clear or time.monotonic() > deadline:
                    break
                time.sleep(_LOOK_SECONDS)
        except (RuntimeError, OSError, ValueError, KeyError):
            pass  # the rank that held the store is gone: whoever cannot be heard is named
        return told

    def _key(self, rank: int) -> str:
        return f"shorthaul/fault/{self.line}/{rank}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
