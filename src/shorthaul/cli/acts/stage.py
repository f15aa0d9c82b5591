"""What the demo is made of: an act is the same work done twice or more, each time in a process of its own.

What travels from such a process to the one that shows is plain values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Run:
    """What one process did, and what it took."""

    role: str  # "plain", "shorthaul", or another that the act has
    what: str  # in words, for the table
    losses: tuple[float, ...] = ()
    first_seconds: float = 0.0  # of the first steps: compiling, tuning and planning are in them
    seconds: float = 0.0  # of all steps that follow
    peak_bytes: int = 0  # of the process, from its beginning to its end
    written_bytes: int = 0
    read_bytes: int = 0
    resident: tuple[tuple[float, int], ...] = ()  # (seconds since the process began, bytes)
    failure: str | None = None  # why it did not come to its end
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Run:
        """Of what `to_dict` made, perhaps by way of JSON."""
        lists = {name: tuple(values[name]) for name in ("losses",)}
        resident = tuple((seconds, size) for seconds, size in values["resident"])
        return cls(**{**values, **lists, "resident": resident})


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
        if plain is None or ours is None or not plain.peak_bytes or not plain.seconds:
            failed = [f"{each.role}: {each.failure}" for each in self.runs if each.failure]
            return f"It did not come to its end: {'; '.join(failed) or 'there is no such run'}."
        if not self.act.is_same_work:
            return f"{ours.what}; {'everything' if self.holds else 'NOT everything'} as in one process."
        memory = _compare(ours.peak_bytes / plain.peak_bytes, "the memory")
        time = _compare(ours.seconds / plain.seconds, "the time")
        same = "the same bits" if self.difference == 0 else f"within {self.difference:.1g}"
        told = f"{memory} and {time} of plain PyTorch; losses {same}."
        if self.act.must_fail is not None and self.holds:
            told += " Within the memory limit plain PyTorch fails, shorthaul trains."
        return told


def _compare(ratio: float, what: str) -> str:
    return f"{ratio:.0%} of {what}" if ratio < 10 else f"{ratio:.1f} times {what}"


def select(acts: Sequence[Act], names: Sequence[str]) -> tuple[Act, ...]:
    """The acts with these names, in their own order; all of them when none are named."""
    return tuple(each for each in acts if not names or each.name in names)
