"""Saying beforehand that something takes long, and takes it once.

It goes to `logging.getLogger("shorthaul")` at level `INFO`, and to the terminal where `settings.progress`
wants progress to be shown.
"""

from __future__ import annotations

import logging

from rich.console import Console

from shorthaul.settings import settings

_log = logging.getLogger("shorthaul")


def announce(text: str) -> None:
    """Say what takes long now."""
    _log.info("%s", text)
    console = Console(stderr=True, force_terminal=True if settings.progress == "on" else None)
    if settings.progress != "off" and console.is_terminal:
        console.print(f"shorthaul: {text}", style="dim", highlight=False)
