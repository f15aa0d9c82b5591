"""Ctrl-C at each line of our code in turn."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import shorthaul

SOURCE = Path(shorthaul.__file__).parent
Place = tuple[str, int]  # a file and a line of it


def find_places(work: Callable[[], object], *folders: str) -> list[Place]:
    """The lines of the package that `work` runs in this thread, in the order of their first run."""
    places: dict[Place, None] = {}
    with _tracing(folders, lambda place: places.setdefault(place)):
        work()
    return list(places)


def run_interrupted(work: Callable[[], object], place: Place) -> bool:
    """Run `work` with a signal where it first comes to `place`; whether an interrupt came out."""
    is_sent = False

    def send(here: Place) -> None:
        nonlocal is_sent
        if here == place and not is_sent:
            is_sent = True
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)

    try:
        with _tracing((place[0],), send):
            work()
            sys.settrace(None)
    except KeyboardInterrupt:
        return True
    assert not is_sent or place is None, f"the interrupt at {place} was lost"
    return False


@contextlib.contextmanager
def _tracing(parts: tuple[str, ...], see: Callable[[Place], object]) -> Iterator[None]:
    known: dict[Any, bool] = {}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if code not in known:
            path = Path(code.co_filename)
            name = str(path.relative_to(SOURCE)) if path.is_relative_to(SOURCE) else ""
            known[code] = bool(name) and any(name.startswith(each) for each in parts)
            if known[code]:
                names[code] = name
        if not known[code]:
            return None
        if event == "line":
            see((names[code], frame.f_lineno))
        return trace

    names: dict[Any, str] = {}
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def obeys_after(delay_seconds: float, work: Callable[[], object]) -> bool:
    """Whether an interrupt that arrives after so long ends `work`, which is repeated until then.

    The clock is started where the interrupt is caught: one that comes at once must not escape.
    """
    main = threading.main_thread().ident
    timer = threading.Timer(delay_seconds, signal.pthread_kill, (main, signal.SIGINT))
    try:
        timer.start()
        while timer.is_alive():
            work()
        work()
    except KeyboardInterrupt:
        timer.join()
        return True
    return False
