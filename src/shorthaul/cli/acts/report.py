"""The demo's results: a table for the terminal, JSON, and what the HTML page shows."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from shorthaul import __version__
from shorthaul.cli.acts.stage import Played, Run
from shorthaul.units import format_bytes, format_seconds

HEADINGS = ("act", "run", "last loss", "first steps", "time", "peak memory", "to disk", "from disk")


def rows_of(played: Sequence[Played]) -> list[tuple[str, ...]]:
    """A row for each run."""
    return [_row(each, run) for each in played for run in each.runs]


def _row(played: Played, run: Run) -> tuple[str, ...]:
    name = played.act.name
    peak = format_bytes(run.peak_bytes)
    if run.failure is not None:
        return (name, f"{run.role}: failed: {run.failure}", "", "", "", peak, "", "")
    return (
        name,
        f"{run.role}: {run.what}",
        f"{run.losses[-1]:.6f}",
        format_seconds(run.first_seconds),
        format_seconds(run.seconds),
        peak,
        format_bytes(run.written_bytes),
        format_bytes(run.read_bytes),
    )


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
