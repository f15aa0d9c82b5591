"""Ctrl-C at a moment that does no harm.

Python runs a signal's handler between any two of its steps, and the exception that it raises there
leaves whatever was half done: a lock held, a slot on disk taken and forgotten. Inside
`deferred_interrupts` such signals wait. They are obeyed where it ends, or at `obey_interrupts`, which
stands wherever something may be waited for, and where leaving does no harm.

>>> import signal
>>> try:
...     with deferred_interrupts:
...         signal.raise_signal(signal.SIGINT)
...         print("this is done first")
... except KeyboardInterrupt:
...     print("then it is obeyed")
this is done first
then it is obeyed

Nothing of this can help code that runs while an object is destroyed: Python prints what is raised
there and goes on, so that the signal is lost. So no class has a destructor written in Python:
`when_gone` calls a function written in C, such as `os.close` or `deque.append`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the wrappers in `signal` take ten times as long
import functools
import operator
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

# Those whose handlers often raise: Ctrl-C, the end that a scheduler asks for, a time limit.
_SIGNALS = tuple(map(int, (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)))
# How long a wait that signals do not end goes on before it is looked whether there was one.
PATIENCE_SECONDS = 0.05

_main_thread = threading.main_thread().ident
_depth = 0  # the main thread's, as is all of the rest
_handlers: dict[int, Any] = {}  # of the signals that wait, as they were found last
_arrived: list[tuple[int, FrameType | None]] = []


class _Deferral:
    """See `deferred_interrupts`; it may be entered inside itself."""

    def __enter__(self) -> None:
        global _depth
        if threading.get_ident() == _main_thread:
            if _depth == 0:
                _begin()
            _depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _depth
        if threading.get_ident() == _main_thread:
            if _depth > 1:
                _depth -= 1
            else:
                _end()


deferred_interrupts = _Deferral()


def obey_interrupts() -> None:
    """Run the handlers of signals that wait, now; what they raise is raised here."""
    while _arrived and threading.get_ident() == _main_thread:
        number, frame = _arrived.pop(0)
        handler = _signal.getsignal(number)
        handler = _handlers[number] if handler is _note else handler
        if callable(handler):
            handler(number, frame)


class Ending(weakref.ref[Any]):
    """A call that is due when an object is gone. Made by `when_gone`."""

    __slots__ = ("run",)

    run: Callable[[], object]

    def cancel(self) -> None:
        """Nothing is due any more."""
        self.run = int  # which does nothing, in C


_run: Any = operator.methodcaller(
    "run"
)  # from a weak reference's callback to the call, without Python
_endings: dict[int, Ending] = {}
_most_endings = 64  # the dead are looked for when there are more


def when_gone(owner: object, function: Callable[..., object], *arguments: object) -> Ending:
    """Have `function(*arguments)` called when nobody holds `owner` any more, but not at Python's end.

    Args:
        owner: An object that can be referred to weakly.
        function: One written in C; in another, a signal could be lost.
        arguments: For it; they must not lead to `owner`.
    """
    global _most_endings
    ending = Ending(owner, _run)
    ending.run = functools.partial(function, *arguments)
    _endings[id(ending)] = ending
    if len(_endings) > _most_endings:
        for key, each in list(_endings.items()):
            if each() is None:
                _endings.pop(key, None)
        _most_endings = max(64, 2 * len(_endings))
    return ending


class PatientLock:
    """A lock with which interrupts are deferred while it is held, and obeyed while it is waited for."""

    def __init__(self, *, is_reentrant: bool = False) -> None:
        self._lock = threading.RLock() if is_reentrant else threading.Lock()

    def acquire(self, timeout_seconds: float | None = None) -> bool:
        """Take the lock; false when it was not to be had in time."""
        deferred_interrupts.__enter__()
        try:
            is_held = self._lock.acquire(blocking=False) or self._await(timeout_seconds)
        except BaseException:
            deferred_interrupts.__exit__(None, None, None)
            raise
        if not is_held:
            deferred_interrupts.__exit__(None, None, None)
        return is_held

    def acquire_first(self) -> None:
        """Take the lock before any interrupt is obeyed: for places where none may come out."""
        deferred_interrupts.__enter__()
        self._lock.acquire()

    def release(self) -> None:
        """Let go of the lock, then obey what came meanwhile."""
        self._lock.release()
        deferred_interrupts.__exit__(None, None, None)

    def _await(self, timeout_seconds: float | None) -> bool:
        stop = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            left = PATIENCE_SECONDS if stop is None else stop - time.monotonic()
            if left <= 0:
                return False
            if self._lock.acquire(timeout=min(left, PATIENCE_SECONDS)):
                return True
            obey_interrupts()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _begin() -> None:
    for number in _SIGNALS:
        handler = _signal.getsignal(number)
        if callable(handler) and handler is not _note:
            _handlers[number] = handler
            _signal.signal(number, _note)


def _end() -> None:
    """Put the handlers back, and run those that are due.

    One that is back may raise while others are not: they are put back at the end of the next block.
    """
    global _depth
    _depth = 0
    for number in reversed(_SIGNALS):
        if _signal.getsignal(number) is _note:  # else somebody set another one meanwhile
            _signal.signal(number, _handlers[number])
    if _arrived:
        obey_interrupts()


def _note(number: int, frame: FrameType | None) -> None:
    _arrived.append((number, frame))


def _start_afresh() -> None:
    # The thread that forked is the child's main thread. What another one deferred ends here.
    global _main_thread
    _arrived.clear()
    if threading.get_ident() != _main_thread:
        _main_thread = threading.get_ident()
        _end()


os.register_at_fork(after_in_child=_start_afresh)
