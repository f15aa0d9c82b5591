"""What the demo is made of: an act is the same work done twice or more, each time in a process of its own.

What travels from such a process to the one that shows is plain values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Run:
    """What one process did, and what it took."""

    role: str  # "plain", "shorthaul", or another that the act has
    what: str  # in words, for the table
    losses: tuple[float, ...] = ()
    first_seconds: float = 0.0  # of the first steps: compiling, tuning and planning are in them
    step_seconds: tuple[float, ...] = ()  # of a step, in each turn that follows
    peak_bytes: int = 0  # of the process, from its beginning to its end
    written_bytes: int = 0
    read_bytes: int = 0
    resident: tuple[tuple[float, int], ...] = ()  # (seconds since the process began, bytes)
    received_bytes: int = 0  # from other processes
    failure: str | None = None  # why it did not finish
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The median of its steps; 0 where none was timed."""
        return median(self.step_seconds) if self.step_seconds else 0.0

    @property
    def moved_bytes(self) -> int:
        """From and to the disk, and between processes."""
        return self.written_bytes + self.read_bytes + self.received_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"median_step_seconds": self.seconds}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Run:
        """Of what `to_dict` made, perhaps by way of JSON."""
        known = {each.name: values[each.name] for each in fields(cls) if each.name in values}
        for name in ("losses", "step_seconds"):
            known[name] = tuple(known.get(name, ()))
        known["resident"] = tuple((seconds, size) for seconds, size in values.get("resident", ()))
        return cls(**known)


@dataclass(frozen=True)
class Act:
    """One thing to show."""

    name: str
    module: str  # where its `play` is
    title: str
    roles: tuple[str, ...]
    tolerance: float  # of the difference of losses; 0 for the same bits
    must_fail: str | None = None  # a role that is shown to fail
    is_same_work: bool = True  # in one process each, so that time and memory can be compared


@dataclass(frozen=True)
class Played:
    """An act that was shown."""

    act: Act
    runs: tuple[Run, ...]
    seconds: float

    def run_of(self, role: str) -> Run | None:
        """The run of a role, if it came to its end."""
        found = (each for each in self.runs if each.role == role and each.failure is None)
        return next(found, None)

    @property
    def difference(self) -> float | None:
        """The largest difference of two losses; None where one of the runs is missing."""
        plain, ours = self.run_of("plain"), self.run_of("shorthaul")
        if plain is None or ours is None or len(plain.losses) != len(ours.losses):
            return None
        pairs = zip(plain.losses, ours.losses, strict=True)
        return max((abs(one - other) for one, other in pairs), default=0.0)

    @property
    def holds(self) -> bool:
        """Whether losses agree, and what should fail did, and nothing else."""
        failed = {each.role for each in self.runs if each.failure is not None}
        expected = set() if self.act.must_fail is None else {self.act.must_fail}
        difference = self.difference
        return failed == expected and difference is not None and difference <= self.act.tolerance

    def sentence(self) -> str:
        """What happened."""
        plain, ours = self.run_of("plain"), self.run_of("shorthaul")
        if plain is None or ours is None:
            failed = [f"{each.role}: {each.failure}" for each in self.runs if each.failure]
            return f"It did not finish: {'; '.join(failed) or 'there is no such run'}."
        if not self.act.is_same_work:
            told = "exactly" if self.holds else "NOT"
            return f"{ours.what}; {told} the rows and seeds of one process."
        told = f"{ours.what}, against {plain.what}: {_tell_memory(ours, plain)}, {_tell_time(ours, plain)}."
        if self.act.must_fail is not None:
            told += (
                f" With as little memory as shorthaul has, plain PyTorch {self._tell_failure()}."
            )
        return told

    def _tell_failure(self) -> str:
        failures = [each.failure for each in self.runs if each.role == self.act.must_fail]
        if not failures or failures[0] is None:
            return "does NOT fail"
        return f"fails ({failures[0].partition(':')[0]})"


def _tell_memory(ours: Run, plain: Run) -> str:
    if not ours.peak_bytes or not plain.peak_bytes:
        return "memory unknown"
    return f"{ours.peak_bytes / plain.peak_bytes:.0%} of the peak memory"


def _tell_time(ours: Run, plain: Run) -> str:
    if not ours.seconds or not plain.seconds:
        return "time unknown"
    speed = plain.seconds / ours.seconds
    if speed >= 1.5:
        return f"{speed:.1f} times as fast"
    if speed <= 0.5:
        return f"{1 / speed:.1f} times slower"
    return f"{1 / speed:.2f} times the time of a step"


def select(acts: Sequence[Act], names: Sequence[str]) -> tuple[Act, ...]:
    """The acts with these names, in their own order; all of them when none are named."""
    return tuple(each for each in acts if not names or each.name in names)
