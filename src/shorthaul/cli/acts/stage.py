"""What the demo is made of: a `Stage` goes into an act, an `Outcome` comes out.

>>> def add(stage: Stage) -> Outcome:
...     return Outcome(("what", "result"), (("1 + 1", str(1 + 1)),), {"sum": 2}, holds=1 + 1 == 2)
>>> play(Act("add", "Adding two numbers", add), Stage(is_quick=True)).outcome.figures
{'sum': 2}
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shorthaul.cli.console import activity


@dataclass(frozen=True)
class Stage:
    """What an act is given: how much to show, and a way to tell what it is doing now."""

    is_quick: bool
    say: Callable[[str], None] = field(default=lambda _: None)


@dataclass(frozen=True)
class Outcome:
    """What an act showed: a table for people, figures for machines, and whether it held."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figures: Mapping[str, Any]
    holds: bool  # everything that the act promises was checked, and true


@dataclass(frozen=True)
class Act:
    """One thing to show."""

    name: str
    title: str
    show: Callable[[Stage], Outcome]


@dataclass(frozen=True)
class Played:
    """An act that was shown, and how long it took."""

    act: Act
    outcome: Outcome
    seconds: float


def play(act: Act, stage: Stage) -> Played:
    """Show an act. One that fails does not hold, and does not keep the others from the stage."""
    started = time.perf_counter()
    try:
        with activity(act.title) as say:
            outcome = act.show(Stage(stage.is_quick, say))
    except Exception as error:
        described = f"{type(error).__name__}: {error}"
        outcome = Outcome(("what", "result"), (("failed", described),), {"error": described}, False)
    return Played(act, outcome, time.perf_counter() - started)
