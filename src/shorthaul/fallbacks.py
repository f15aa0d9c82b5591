"""Fallbacks taken on this machine, and why.

A missing compiler, io_uring or GPU never changes results in silence: the first time a part takes
its second-best way it notes it here, which logs it once, and `shorthaul doctor` lists it.

>>> note_fallback("an example", "another", "the first is not at hand")
>>> [each.instead for each in taken_fallbacks() if each.what == "an example"]
['another']
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass

_log = logging.getLogger("shorthaul")


@dataclass(frozen=True)
class Fallback:
    """One second-best way that was taken."""

    what: str
    instead: str
    reason: str


_taken: dict[Fallback, None] = {}
_lock = threading.Lock()


def _start_afresh_after_fork() -> None:
    # Another thread may have held the lock while this process was made; it does not exist here.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_start_afresh_after_fork)


def note_fallback(what: str, instead: str, reason: str) -> None:
    """Remember that `what` uses `instead` because of `reason`, and log it the first time."""
    fallback = Fallback(what, instead, reason)
    with _lock:
        if fallback in _taken:
            return
        _taken[fallback] = None
    _log.warning("%s: using %s, because %s", what, instead, reason)


def taken_fallbacks() -> tuple[Fallback, ...]:
    """Every fallback taken so far in this process, in order."""
    with _lock:
        return tuple(_taken)
