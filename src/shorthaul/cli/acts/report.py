"""The demo's results: the closing table, a sentence for each act, and JSON."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from shorthaul import __version__
from shorthaul.cli.acts.stage import Played
from shorthaul.units import format_bytes

HEADINGS = ("act", "losses", "time of a step", "peak memory", "first steps", "moved")
WIDE = 98  # columns of a terminal that has room for a ratio beside its pair
_UNITS = {
    "seconds": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")),
    "bytes": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")),
}


def rows_of(played: Sequence[Played]) -> list[tuple[str, ...]]:
    """A row for each act: plain PyTorch before the arrow, shorthaul after it."""
    return [_row(each) for each in played]


def _row(played: Played) -> tuple[str, ...]:
    plain, ours = played.run_of("plain"), played.run_of("shorthaul")
    if plain is None or ours is None:
        return (played.act.name, "failed", "", "", "", "")
    moved = format_bytes(ours.moved_bytes) if ours.moved_bytes else "-"
    if not played.act.is_same_work:
        return (played.act.name, tell_losses(played), "-", "-", "-", moved)
    return (
        played.act.name,
        tell_losses(played),
        compare(plain.seconds, ours.seconds, "seconds"),
        compare(plain.peak_bytes, ours.peak_bytes, "bytes"),
        format_pair(plain.first_seconds, ours.first_seconds, "seconds"),
        moved,
    )


def tell_losses(played: Played) -> str:
    """Whether they are the same."""
    difference = played.difference
    if difference is None:
        return "missing"
    same = "same" if difference == 0 else f"± {difference:.0e}"
    return same if played.holds else f"{same} (!)"


def format_pair(one: float, other: float, kind: str) -> str:
    """Two amounts in one unit, that of the larger.

    >>> format_pair(0.25, 1.5, "seconds"), format_pair(2**30, 2**28, "bytes")
    ('0.25 → 1.50 s', '1.00 → 0.25 GiB')
    """
    most = max(one, other)
    size, unit = next((each for each in _UNITS[kind] if most >= each[0]), _UNITS[kind][-1])
    digits = 0 if most / size >= 100 else 1 if most / size >= 10 else 2
    return f"{one / size:.{digits}f} → {other / size:.{digits}f} {unit}"


def compare(one: float, other: float, kind: str) -> str:
    """A pair, and the other as a multiple of the first, in words that a space parts.

    >>> compare(2.0, 1.0, "seconds")
    '2.00 → 1.00 s (0.50x)'
    """
    if not one or not other:
        return "-"
    ratio = other / one
    digits = 0 if ratio >= 100 else 1 if ratio >= 10 else 2 if ratio >= 0.1 else 3
    return f"{format_pair(one, other, kind)} ({ratio:.{digits}f}x)"


def describe(played: Sequence[Played]) -> dict[str, Any]:
    """Everything shown, as plain values."""
    return {
        "shorthaul": __version__,
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "holds": all(each.holds for each in played),
        "acts": [
            {
                "name": each.act.name,
                "title": each.act.title,
                "holds": each.holds,
                "seconds": each.seconds,
                "difference": each.difference,
                "tolerance": each.act.tolerance,
                "sentence": each.sentence(),
                "runs": [run.to_dict() for run in each.runs],
            }
            for each in played
        ],
    }
