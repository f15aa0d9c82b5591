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

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from shorthaul.interrupts import when_gone
from shorthaul.metric_formats import Metric, Point, format_opentelemetry, format_prometheus
from shorthaul.units import format_bytes, format_seconds

DISK_TRIAL = "disk trial"  # bytes that were moved to see how fast a disk is


@dataclass
class Tally:
    """How much, and in how many events."""

    bytes: int = 0
    times: int = 0


@dataclass
class Meter:
    """What happened while one `with sh.meter()` block was open.

    `kept_bytes` is what is held now, also by what began before the block, and at the end what was
    held then; `peak_kept_bytes` is the largest sum meanwhile. Inside the block, all of it tells of the
    time so far.
    """

    moved: dict[tuple[str, str, str], Tally] = field(default_factory=dict)  # by (from, to, why)
    peak_kept_bytes: int = 0  # the largest sum so far
    stall_seconds: dict[str, float] = field(default_factory=dict)  # by what was waited for
    launches: Counter[str] = field(default_factory=Counter)  # by kernel
    compiles: Counter[str] = field(default_factory=Counter)  # by kernel
    _kept: dict[str, int] = field(default_factory=dict, repr=False)
    _began_at: float = field(default_factory=time.perf_counter, repr=False)
    _seconds: float | None = field(default=None, repr=False)  # None inside the block
    _peak_bytes: int | None = field(default=None, repr=False)
    # False where the high-water mark cannot be set back: it would tell of times before the block.
    _is_peak_ours: bool = field(default=False, repr=False)

    @property
    def seconds(self) -> float:
        """The time that the block took, or has taken so far."""
        return time.perf_counter() - self._began_at if self._seconds is None else self._seconds

    @property
    def kept_bytes(self) -> dict[str, int]:
        """What is held, by what for."""
        if self._seconds is None:
            _tell(_settle)
        return self._kept

    @property
    def peak_resident_bytes(self) -> int | None:
        """The most memory that was resident at a time; `None` where the kernel does not tell."""
        if self._seconds is None:
            self._note_resident(read_peak_resident_bytes())
        return self._peak_bytes

    def _note_resident(self, peak_bytes: int | None) -> None:
        if self._is_peak_ours and peak_bytes is not None:
            self._peak_bytes = max(self._peak_bytes or 0, peak_bytes)

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
        """Bytes moved, by their road and reason.

        Args:
            source: Where they came from; None (default) for anywhere.
            target: Where they went; None (default) for anywhere.
            why: What for; None (default) for anything.
        """
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
            "kept_bytes": dict(sorted(self.kept_bytes.items())),
            "peak_kept_bytes": self.peak_kept_bytes,
            "stall_seconds": dict(sorted(self.stall_seconds.items())),
            "launches": dict(sorted(self.launches.items())),
            "compiles": dict(sorted(self.compiles.items())),
            "peak_resident_bytes": self.peak_resident_bytes,
        }

    def summary(self) -> str:
        """One line, for logs."""
        parts = [
            f"{format_bytes(self.read_bytes)} read",
            f"{format_bytes(self.written_bytes)} written",
            f"{format_bytes(self.peak_kept_bytes)} kept at the peak",
            f"{format_seconds(sum(self.stall_seconds.values()))} waited",
        ]
        peak_bytes = self.peak_resident_bytes
        if peak_bytes is not None:
            parts.append(f"peak resident memory {format_bytes(peak_bytes)}")
        return ", ".join(parts)

    def to_prometheus(self) -> str:
        """The same as Prometheus's text, for a scrape or a file of the node exporter."""
        return format_prometheus(self._metrics())

    def to_opentelemetry(self) -> dict[str, Any]:
        """The same as OpenTelemetry's JSON, which a collector takes at `/v1/metrics`."""
        began_at = time.time() - (time.perf_counter() - self._began_at)
        return format_opentelemetry(
            self._metrics(),
            start_nanoseconds=int(began_at * 1e9),
            now_nanoseconds=int((began_at + self.seconds) * 1e9),
        )

    def _metrics(self) -> list[Metric]:
        def journeys(of: Callable[[Tally], int]) -> tuple[Point, ...]:
            names = ("source", "target", "why")
            return tuple(
                Point(of(tally), tuple(zip(names, journey, strict=True)))
                for journey, tally in sorted(self.moved.items())
            )

        def by(label: str, figures: Mapping[str, float]) -> tuple[Point, ...]:
            return tuple(Point(value, ((label, key),)) for key, value in sorted(figures.items()))

        metrics = [
            Metric("moved_bytes", "By", "Bytes moved.", True, journeys(lambda each: each.bytes)),
            Metric("moves", "1", "Events of moving.", True, journeys(lambda each: each.times)),
            Metric("kept_bytes", "By", "Bytes held now.", False, by("why", self.kept_bytes)),
            Metric(
                "peak_kept_bytes",
                "By",
                "The most bytes held at a time.",
                False,
                (Point(self.peak_kept_bytes),),
            ),
            Metric("stall_seconds", "s", "Time waited.", True, by("why", self.stall_seconds)),
            Metric("launches", "1", "Kernels called.", True, by("kernel", self.launches)),
            Metric("compiles", "1", "Kernels compiled.", True, by("kernel", self.compiles)),
        ]
        peak_bytes = self.peak_resident_bytes
        if peak_bytes is not None:
            meaning = "The most memory that was resident at a time."
            metrics.append(
                Metric("peak_resident_bytes", "By", meaning, False, (Point(peak_bytes),))
            )
        return [each for each in metrics if each.points]

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
        peak_resident_bytes = self.peak_resident_bytes
        if peak_resident_bytes is not None:
            table.add_row("peak resident memory", "", format_bytes(peak_resident_bytes), "")
        return table

    def _keep(self, now: dict[str, int]) -> None:
        self._kept = dict(now)
        self.peak_kept_bytes = max(self.peak_kept_bytes, sum(now.values()))


# The open meters. A tuple, replaced whole under the lock: `if not _open_meters` is the entire cost
# of an event while nobody listens.
_open_meters: tuple[Meter, ...] = ()
# The same, never replaced, for those who look before they call: empty while nobody listens.
listening: list[Meter] = []
_kept_now: dict[str, int] = {}

# A finalizer that frees kept bytes may run inside another event of the same thread, wherever the
# garbage collector strikes. So the lock is re-entrant, and an event that arrives in the middle of
# another waits in the queue until that one is whole.
_lock = threading.RLock()
_queue: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
_is_working = False


def _tell(event: Callable[..., None], *facts: Any) -> None:
    """Run `event(*facts)` alone; when this returns outside a finalizer, it has happened."""
    global _is_working
    with _lock:
        _queue.append((event, facts))
        if _is_working:
            return
        _is_working = True
        try:
            while _queue:
                event, facts = _queue.popleft()
                event(*facts)
        finally:
            _is_working = False


def _start_afresh_after_fork() -> None:
    # Another thread may have held the lock while this process was made; it does not exist here.
    global _lock, _is_working
    _lock, _is_working = threading.RLock(), False


os.register_at_fork(after_in_child=_start_afresh_after_fork)


@contextmanager
def meter() -> Iterator[Meter]:
    """Count everything that shorthaul moves and keeps inside the block, in all threads."""
    mine = Meter()
    _tell(_open_meter, mine)
    mine._began_at = time.perf_counter()
    try:
        yield mine
    finally:
        seconds = time.perf_counter() - mine._began_at
        _tell(_close_meter, mine)
        mine._seconds = seconds


def record_move(source: str, target: str, count_bytes: int, why: str, times: int = 1) -> None:
    """`count_bytes` went from `source` to `target`, in `times` events."""
    if _open_meters:
        _tell(_note_move, (source, target, why), count_bytes, times)


def record_kept(change_bytes: int, why: str) -> None:
    """Bytes held for `why` grew by `change_bytes`, or shrank when it is negative."""
    _tell(_note_kept, change_bytes, why)


class KeptBytes:
    """Bytes that one object keeps. When it is gone, so are they, and the meter hears of it next."""

    def __init__(self, why: str) -> None:
        self.why = why
        self._held = [0]
        when_gone(self, _queue.append, (_note_gone, (self._held, why)))

    @property
    def bytes(self) -> int:
        """How many there are."""
        return self._held[0]

    def change(self, change_bytes: int) -> None:
        """Count `change_bytes` more as kept; a negative number counts fewer."""
        self._held[0] += change_bytes
        record_kept(change_bytes, self.why)


def record_stall(seconds: float, why: str) -> None:
    """Somebody waited `seconds` for `why`."""
    if _open_meters:
        _tell(_note_stall, seconds, why)


def record_launch(kernel: str) -> None:
    """A generated kernel was called."""
    if _open_meters:
        _tell(_note_launch, kernel)


def record_compile(kernel: str) -> None:
    """A generated kernel was compiled (not: found in the cache)."""
    if _open_meters:
        _tell(_note_compile, kernel)


def _open_meter(mine: Meter) -> None:
    global _open_meters
    # One high-water mark serves all meters, so those already open take what it shows before it is
    # set back.
    _note_resident()
    mine._is_peak_ours = reset_peak_resident()
    mine._keep(_kept_now)
    _open_meters = (*_open_meters, mine)
    listening[:] = _open_meters


def _close_meter(mine: Meter) -> None:
    global _open_meters
    _note_resident()
    _open_meters = tuple(each for each in _open_meters if each is not mine)
    listening[:] = _open_meters


def _note_resident() -> None:
    peak_bytes = read_peak_resident_bytes()
    for each in _open_meters:
        each._note_resident(peak_bytes)


def _note_move(journey: tuple[str, str, str], count_bytes: int, times: int) -> None:
    for each in _open_meters:
        tally = each.moved.setdefault(journey, Tally())
        tally.bytes += count_bytes
        tally.times += times


def _note_kept(change_bytes: int, why: str) -> None:
    kept_bytes = _kept_now.pop(why, 0) + change_bytes
    if kept_bytes:
        _kept_now[why] = kept_bytes
    for each in _open_meters:
        each._keep(_kept_now)


def _settle() -> None:
    """What waits in the queue comes first, and nothing after it."""


def _note_gone(held: list[int], why: str) -> None:
    _note_kept(-held[0], why)


def _note_stall(seconds: float, why: str) -> None:
    for each in _open_meters:
        each.stall_seconds[why] = each.stall_seconds.get(why, 0.0) + seconds


def _note_launch(kernel: str) -> None:
    for each in _open_meters:
        each.launches[kernel] += 1


def _note_compile(kernel: str) -> None:
    for each in _open_meters:
        each.compiles[kernel] += 1


def read_peak_resident_bytes(process: str = "self") -> int | None:
    """The kernel's high-water mark of a process's resident memory; `None` where it has none."""
    try:
        with open(f"/proc/{process}/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def reset_peak_resident(process: str = "self") -> bool:
    """Set the high-water mark back to what is resident now; false where that is not allowed."""
    try:
        with open(f"/proc/{process}/clear_refs", "w") as clear:
            clear.write("5")
    except OSError:
        return False
    return True
