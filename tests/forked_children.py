"""Work in a forked child, beside its parent's."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable

PATIENCE_SECONDS = 60  # for what must happen; never reached when it does


def in_child(work: Callable[[], None], *, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Run `work` in a forked child and `meanwhile` here; fail with the child's traceback if it fails."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(PATIENCE_SECONDS)
            work()
            code = 0
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-60_000:])
        finally:
            os._exit(code)
    os.close(writing)
    try:
        meanwhile()
    finally:
        with os.fdopen(reading, "rb") as pipe:
            report = pipe.read().decode()
        _, status = os.waitpid(child, 0)
    assert status == 0, report or f"the child ended with status {status}"
