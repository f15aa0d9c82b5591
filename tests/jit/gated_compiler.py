"""A compiler that does not begin before the test lets it."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from tests.jit.sources import write_compiler


def write_gated_compiler(directory: Path) -> Path:
    """g++ without optimization, behind the lock of `gate`; it writes its number to `started`.

    What it compiled for one test of a run it has for the others: texts differ in their first line alone.
    """
    (directory / "gate").touch()
    store = directory.parent / "compiled"
    store.mkdir(exist_ok=True)
    return write_compiler(
        directory / "gated++",
        f'echo $$ >> "{directory / "started"}"',
        f'flock --shared "{directory / "gate"}" true',
        f'kept="{store}/$(tail -n +2 kernel.cpp | sha256sum | cut -c 1-64)"',
        '[ -e "$kept" ] && cp "$kept" "$output" && exit 0',
        'g++ $command -O0 && cp "$output" "$kept.$$" && mv "$kept.$$" "$kept"',
    )


@contextlib.contextmanager
def closed_gate(directory: Path) -> Iterator[None]:
    """As long as this lasts, compilers wait."""
    with (directory / "gate").open() as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield
        fcntl.flock(gate, fcntl.LOCK_UN)
