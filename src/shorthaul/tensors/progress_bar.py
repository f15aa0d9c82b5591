"""A progress bar for tables that are written, where `settings.progress` wants one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from shorthaul.settings import settings


class Bar:
    """A progress bar, in bytes, of which the total is known when the rows are."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._rows, self._bytes = progress, 0, 0
        self._task = progress.add_task(f"writing {name}", total=None)

    def update(self, rows: int, count_bytes: int, total_rows: int | None) -> None:
        """Some rows more were written; `total_rows` there will be, where that is known."""
        self._rows += rows
        self._bytes += count_bytes
        total = None
        if total_rows and self._rows:
            total = self._bytes * total_rows / self._rows
        self._progress.update(self._task, completed=self._bytes, total=total)


@contextlib.contextmanager
def progress_bar(name: str, wanted: bool) -> Iterator[Bar]:
    """A bar on standard error while `name` is written, where it is wanted and somebody looks."""
    console = Console(stderr=True, force_terminal=True if settings.progress == "on" else None)
    shown = wanted and settings.progress != "off" and console.is_terminal
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        yield Bar(progress, name)
