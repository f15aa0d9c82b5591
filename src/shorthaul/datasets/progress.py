"""A progress bar for builds that take seconds, where `settings.progress` wants one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from shorthaul.settings import settings

Item = TypeVar("Item")


def with_progress(items: Sequence[Item], description: str) -> Iterator[Item]:
    """`items`, one by one, with a bar on standard error that vanishes at the end."""
    console = Console(stderr=True, force_terminal=True if settings.progress == "on" else None)
    shown = settings.progress != "off" and console.is_terminal
    yield from track(items, description, console=console, transient=True, disable=not shown)
