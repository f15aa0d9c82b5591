"""A progress bar for blocking waits, where `settings.progress` and the terminal allow one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress

from shorthaul.settings import settings


@contextlib.contextmanager
def progress_on_terminal(wanted: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """A function that shows on standard error how far something is: its name, how many, of how many.

    Args:
        wanted: False shows nothing (default True).
    """
    console = Console(stderr=True, force_terminal=True if settings.progress == "on" else None)
    is_shown = wanted and settings.progress != "off" and console.is_terminal
    with Progress(console=console, transient=True, disable=not is_shown) as progress:
        bars = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=None)
            progress.update(bars[name], completed=done, total=total)

        yield show
