"""What `sh.advise` answers: where a step's bytes and time go, and what changing something would do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from shorthaul.errors import PlanError
from shorthaul.units import format_bytes, format_seconds

_EDITION = 1  # of the saved form


@dataclass(frozen=True)
class Change:
    """One thing to do, with what it is expected to do to memory and time.

    Args:
        name: What `sh.apply` knows it by.
        title: What it is, in words.
        line: What to add to a script.
        peak_bytes: Expected resident memory of the process at its peak.
        seconds: Expected time of a step.
        is_safe: Whether numbers stay what they are, but for the order of sums.
        how: How it is known: played through, or measured by a step.
        arguments: What `sh.apply` needs to do it.
    """

    name: str
    title: str
    line: str
    peak_bytes: int
    seconds: float
    is_safe: bool
    how: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Advice:
    """Where the bytes and the time of a step go, and what to change, the most useful first.

    Args:
        model_name: The class of the model.
        seconds: Time of a step, forward and backward.
        peak_bytes: Resident memory of the process at the peak of the step.
        memory: That peak by what it holds.
        activations: What autograd saved, by module.
        forward_seconds: Time of the forward pass by module, while it was watched.
        changes: What can be done.
        notes: What was left, and why.
        model: The model, for `sh.apply`; None where this was loaded from a file (the default).
        context: Batch and loss, for `sh.apply`; None where this was loaded from a file (the
            default).
    """

    model_name: str
    seconds: float
    peak_bytes: int
    memory: dict[str, int]
    activations: dict[str, int]
    forward_seconds: dict[str, float]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    model: torch.nn.Module | None = field(default=None, repr=False, compare=False)
    context: tuple[Any, Any] | None = field(default=None, repr=False, compare=False)

    def describe(self) -> str:
        """All of it as text, within 80 columns but for names of layers and lines of Python."""
        return "\n".join([*self._describe_step(), "", *self._describe_changes()])

    __str__ = describe

    def summary(self) -> str:
        """One line, for logs."""
        best = f"; first: {self.changes[0].title}" if self.changes else ""
        return (
            f"{self.model_name}: a step takes {format_seconds(self.seconds)} and "
            f"{format_bytes(self.peak_bytes)} of resident memory{best}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = {name: getattr(self, name) for name in _SAVED}
        return values | {"changes": [asdict(each) for each in self.changes], "edition": _EDITION}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON.

        Args:
            path: The file.
        """
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Advice:
        """Read what `save` wrote; the model is not in it.

        Args:
            path: The file.
        """
        values = json.loads(Path(path).read_text())
        if not isinstance(values, dict) or values.pop("edition", None) != _EDITION:
            raise PlanError(f"{path} holds no advice of this version of shorthaul.")
        changes = tuple(Change(**each) for each in values.pop("changes"))
        return cls(changes=changes, notes=tuple(values.pop("notes")), **values)

    def _describe_step(self) -> Iterator[str]:
        yield self.summary().partition(";")[0]
        for what, size in sorted(self.memory.items(), key=lambda item: -item[1]):
            yield f"  {what:<44}{format_bytes(size):>10}  {_share(size, self.peak_bytes):>4}"
        saved_bytes = sum(self.activations.values())
        if saved_bytes:
            yield "activations by module:"
        for name, size in self.activations.items():
            yield f"  {name or 'code outside any module':<44}{format_bytes(size):>10}  {_share(size, saved_bytes):>4}"
        whole = sum(self.forward_seconds.values())
        if whole:
            yield "time of the forward pass by module:"
        for name, seconds in self.forward_seconds.items():
            yield f"  {name or 'code outside any module':<44}{format_seconds(seconds):>10}  {_share(seconds, whole):>4}"

    def _describe_changes(self) -> Iterator[str]:
        if not self.changes:
            yield "nothing was found that would help"
        for number, each in enumerate(self.changes, 1):
            yield f"{number}. {each.title}"
            yield (
                f"   memory {format_bytes(each.peak_bytes)} "
                f"({_difference(each.peak_bytes, self.peak_bytes)}), step "
                f"{format_seconds(each.seconds)} ({_difference(each.seconds, self.seconds)}); {each.how}"
            )
            if not each.is_safe:
                yield "   changes numbers"
            yield from (f"   > {line}" for line in each.line.splitlines())
        for note in self.notes:
            yield f"left: {note}"


_SAVED = (
    "model_name",
    "seconds",
    "peak_bytes",
    "memory",
    "activations",
    "forward_seconds",
    "notes",
)


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else ""


def _difference(now: float, before: float) -> str:
    return f"{now / before - 1:+.0%}" if before else "new"
