"""Errors about parts of a graph, ranks, and what they exchange."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from shorthaul.errors.root import ShorthaulError


class PartitionError(ShorthaulError, ValueError):
    """A graph was to be cut into parts with arguments that do not fit it."""


class PartFileError(ShorthaulError, OSError):
    """A folder of parts is not whole: a file is missing, half written, or not the one that was saved."""

    def __init__(self, path: str | os.PathLike[str], problem: str, remedy: str) -> None:
        self.path = os.fspath(path)
        self.message = f"{self.path}: {problem}.\n  {remedy}"
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


class RankSetupError(ShorthaulError, RuntimeError):
    """Ranks were not set up as the parts, the table or the loader needs them."""


class RankDisagreementError(ShorthaulError, RuntimeError):
    """Ranks do not mean the same: other parts, another table, other arguments of a loader."""

    def __init__(self, what: str, by_rank: Mapping[int, str], remedy: str) -> None:
        told = "; ".join(f"rank {rank} has {each}" for rank, each in sorted(by_rank.items()))
        super().__init__(f"ranks do not agree on {what}: {told}.\n  {remedy}")
        self.by_rank = dict(by_rank)


class CheckpointError(ShorthaulError, ValueError):
    """A checkpoint is of something else than what was to go on from it."""

    def __init__(self, what: str, saved: object, here: object, remedy: str) -> None:
        super().__init__(
            f"the checkpoint does not fit {what}: it has {saved}, and here is {here}.\n  {remedy}"
        )


class ExchangeError(ShorthaulError, RuntimeError):
    """An exchange between ranks did not take place; names who is to blame, where, and what to do."""

    def __init__(
        self,
        what: str,
        rank: int,
        parts: str,
        where: str,
        blamed: Sequence[str],
        remedy: str,
    ) -> None:
        told = "".join(f"\n  {each}" for each in blamed)
        whose = f" ({parts})" if parts else ""
        super().__init__(
            f"rank {rank}{whose} could not exchange {where}: {what}.{told}\n  {remedy}"
        )
        self.rank, self.where, self.blamed = rank, where, tuple(blamed)


class PeerError(ExchangeError):
    """Another rank had an error of its own, and told all others before it stopped."""
