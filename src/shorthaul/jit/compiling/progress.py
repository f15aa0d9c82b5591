"""What is said of blocking waits: once beforehand, and a progress bar where `settings.progress` and the terminal allow one."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress

from shorthaul.announcements import announce
from shorthaul.errors import ShorthaulError
from shorthaul.jit.kernel_cache import CacheEntry, KernelCache
from shorthaul.settings import settings
from shorthaul.units import format_seconds

_SHORT_SECONDS = 2.0  # a wait that is not worth a word
_LATEST = 32  # kernels in the cache that say how long one takes here


def announce_compiling(kernels: int, cache: KernelCache | None = None) -> None:
    """Say that somebody waits now for so many kernels, and about how long, if others in the cache tell.

    Args:
        kernels: How many.
        cache: Where others lie; None (default) for the one of the settings.
    """
    latest: tuple[CacheEntry, ...] = ()
    with contextlib.suppress(ShorthaulError, OSError):  # who is about to use the cache hears of it
        latest = (KernelCache() if cache is None else cache).entries()[-_LATEST:]
    about = ""
    if latest:
        each_seconds = statistics.median(each.compile_seconds for each in latest)
        seconds = each_seconds * -(-kernels // settings.compilers)
        if seconds < _SHORT_SECONDS:
            return
        about = f", about {format_seconds(seconds)}"
    announce(f"compiling {kernels:,} kernel{'s' * (kernels > 1)}{about}, once")


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
