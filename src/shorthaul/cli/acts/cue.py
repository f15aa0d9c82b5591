"""Between an act and whoever watches it: words of what is being done, and turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _ignore(_: str) -> None:
    pass


def _go_on() -> None:
    pass


@dataclass(frozen=True)
class Cue:
    """How an act tells what it does, and when it may go on.

    The processes of an act take turns, so that a moment in which the machine is busy with something
    else is shared among them. An act waits before each turn that is timed.
    """

    say: Callable[[str], None] = _ignore
    wait: Callable[[], None] = _go_on
