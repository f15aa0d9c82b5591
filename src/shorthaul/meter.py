"""The ruler: what was moved, what was kept, what was waited for.

Everything in shorthaul that moves or keeps bytes reports here, and any number of `with` blocks may
be listening, nested or in other threads.

>>> import shorthaul as sh
>>> with sh.meter() as m:
...     record_move("disk", "memory", 4096, "feature rows")
>>> m.read_bytes, m.to_dict()["moved"]
(4096, [{'source': 'disk', 'target': 'memory', 'why': 'feature rows', 'bytes': 4096, 'times': 1}])

Places are plain words: `disk`, `memory`, `cuda`. Nothing is counted while no meter listens, except
the bytes kept now, which a meter that starts later must know.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from shorthaul.units import format_bytes, format_seconds


@dataclass
class Tally:
    """How much, and in how many events."""

    bytes: int = 0
    times: int = 0


@dataclass
class Meter:
    """What happened while one `with sh.meter()` block was open."""

    moved: dict[tuple[str, str, str], Tally] = field(default_factory=dict)
    kept_bytes: Counter[str] = field(default_factory=Counter)
    peak_kept_bytes: int = 0
    stall_seconds: dict[str, float] = field(default_factory=dict)
    launches: Counter[str] = field(default_factory=Counter)
    compiles: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    peak_resident_bytes: int | None = None  # None where the kernel does not tell

    @property
    def moved_bytes(self) -> int:
        """Bytes moved between any two places."""
        return sum(tally.bytes for tally in self.moved.values())

    @property
    def read_bytes(self) -> int:
        """Bytes that came from disk."""
        return self.bytes_between(source="disk")

    @property
    def written_bytes(self) -> int:
        """Bytes that went to disk."""
        return self.bytes_between(target="disk")

    def bytes_between(
        self, source: str | None = None, target: str | None = None, why: str | None = None
    ) -> int:
        """Bytes moved from `source` to `target` because of `why`; `None` matches anything."""
        wanted = (source, target, why)
        return sum(
            tally.bytes
            for key, tally in self.moved.items()
            if all(want is None or want == have for want, have in zip(wanted, key, strict=True))
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and for ledgers."""
        return {
            "seconds": self.seconds,
            "moved": [
                {"source": source, "target": target, "why": why}
                | {"bytes": tally.bytes, "times": tally.times}
                for (source, target, why), tally in sorted(self.moved.items())
            ],
            "kept_bytes": dict(self.kept_bytes),
            "peak_kept_bytes": self.peak_kept_bytes,
            "stall_seconds": dict(self.stall_seconds),
            "launches": dict(self.launches),
            "compiles": dict(self.compiles),
            "peak_resident_bytes": self.peak_resident_bytes,
        }

    def table(self) -> Table:
        """The same as a table for `rich.print`."""
        table = Table(title="bytes moved and kept")
        for heading in ("what", "why", "amount", "times"):
            table.add_column(heading, justify="right" if heading in ("amount", "times") else "left")
        for (source, target, why), tally in sorted(self.moved.items()):
            table.add_row(
                f"{source} -> {target}", why, format_bytes(tally.bytes), f"{tally.times:,}"
            )
        for why, count_bytes in sorted(self.kept_bytes.items()):
            table.add_row("kept at the end", why, format_bytes(count_bytes), "")
        table.add_row("kept at the peak", "", format_bytes(self.peak_kept_bytes), "")
        for why, seconds in sorted(self.stall_seconds.items()):
            table.add_row("waited", why, format_seconds(seconds), "")
        for kernel, times in sorted(self.launches.items()):
            table.add_row("launched", kernel, "", f"{times:,}")
        for kernel, times in sorted(self.compiles.items()):
            table.add_row("compiled", kernel, "", f"{times:,}")
        if self.peak_resident_bytes is not None:
            table.add_row("peak resident memory", "", format_bytes(self.peak_resident_bytes), "")
        return table

    def _note_kept(self, now: Counter[str]) -> None:
        self.kept_bytes = Counter({why: count for why, count in now.items() if count})
        self.peak_kept_bytes = max(self.peak_kept_bytes, sum(self.kept_bytes.values()))

    def _note_resident(self, peak_bytes: int | None) -> None:
        if peak_bytes is not None:
            self.peak_resident_bytes = max(self.peak_resident_bytes or 0, peak_bytes)


# The open meters. A tuple, replaced whole under the lock: `if not _open_meters` is the entire cost
# of an event while nobody listens.
_open_meters: tuple[Meter, ...] = ()
_kept_now: Counter[str] = Counter()
_lock = threading.Lock()


@contextmanager
def meter() -> Iterator[Meter]:
    """Count everything that shorthaul moves and keeps inside the block, in all threads."""
    global _open_meters
    mine = Meter()
    with _lock:
        # One high-water mark serves all meters, so those already open take what it shows before it
        # is set back.
        peak_bytes = read_peak_resident_bytes()
        for each in _open_meters:
            each._note_resident(peak_bytes)
        can_reset = reset_peak_resident()
        mine._note_kept(_kept_now)
        _open_meters = (*_open_meters, mine)
    started = time.perf_counter()
    try:
        yield mine
    finally:
        mine.seconds = time.perf_counter() - started
        with _lock:
            _open_meters = tuple(each for each in _open_meters if each is not mine)
            peak_bytes = read_peak_resident_bytes() if can_reset else None
            mine._note_resident(peak_bytes)
            for each in _open_meters:
                each._note_resident(peak_bytes)


def record_move(source: str, target: str, count_bytes: int, why: str, times: int = 1) -> None:
    """`count_bytes` went from `source` to `target`, in `times` events."""
    if not _open_meters:
        return
    with _lock:
        for each in _open_meters:
            tally = each.moved.setdefault((source, target, why), Tally())
            tally.bytes += count_bytes
            tally.times += times


def record_kept(change_bytes: int, why: str) -> None:
    """Bytes held for `why` grew by `change_bytes`, or shrank when it is negative."""
    with _lock:
        _kept_now[why] += change_bytes
        for each in _open_meters:
            each._note_kept(_kept_now)


def record_stall(seconds: float, why: str) -> None:
    """Somebody waited `seconds` for `why`."""
    if not _open_meters:
        return
    with _lock:
        for each in _open_meters:
            each.stall_seconds[why] = each.stall_seconds.get(why, 0.0) + seconds


def record_launch(kernel: str) -> None:
    """A generated kernel was called."""
    if not _open_meters:
        return
    with _lock:
        for each in _open_meters:
            each.launches[kernel] += 1


def record_compile(kernel: str) -> None:
    """A generated kernel was compiled (not: found in the cache)."""
    if not _open_meters:
        return
    with _lock:
        for each in _open_meters:
            each.compiles[kernel] += 1


def read_peak_resident_bytes() -> int | None:
    """The kernel's high-water mark of this process's resident memory; `None` where it has none."""
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def reset_peak_resident() -> bool:
    """Set the high-water mark back to what is resident now; false where that is not allowed."""
    try:
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")
    except OSError:
        return False
    return True
