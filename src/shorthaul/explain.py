"""Showing how something came to be: `sh.explain(x)` is every stage of what shorthaul made.

Whatever has stages says so with a method `explain() -> str`; this module only asks it.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from shorthaul.errors import ExplainError


@runtime_checkable
class Explainable(Protocol):
    """Anything that can tell how it was made."""

    def explain(self) -> str:
        """Every stage, as text."""


def explain(subject: object) -> str:
    """How `subject` came to be: source, passes, schedules, commands, byte counts.

    >>> import shorthaul as sh
    >>> sh.explain(42)
    Traceback (most recent call last):
        ...
    shorthaul.errors.ExplainError: cannot explain 42: expected something that shorthaul made, such as a kernel.
    """
    if isinstance(subject, type) or not isinstance(subject, Explainable):
        raise ExplainError(subject)
    return subject.explain()
