"""The demo's results as a Markdown page and as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from shorthaul import __version__
from shorthaul.cli.acts.stage import Played
from shorthaul.meter import Meter
from shorthaul.units import format_bytes, format_seconds


def write_report(directory: Path, played: Sequence[Played], measured: Meter) -> tuple[Path, Path]:
    """Write `demo.md` and `demo.json` into `directory`, which is made if it is not there."""
    directory.mkdir(parents=True, exist_ok=True)
    page, data = directory / "demo.md", directory / "demo.json"
    page.write_text(format_page(played, measured), encoding="utf-8")
    data.write_text(json.dumps(describe(played, measured), indent=1) + "\n", encoding="utf-8")
    return page, data


def describe(played: Sequence[Played], measured: Meter) -> dict[str, Any]:
    """Everything shown, as plain values."""
    return {
        "shorthaul": __version__,
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "holds": all(each.outcome.holds for each in played),
        "acts": [
            {
                "name": each.act.name,
                "title": each.act.title,
                "holds": each.outcome.holds,
                "seconds": each.seconds,
                "figures": dict(each.outcome.figures),
            }
            for each in played
        ],
        "meter": measured.to_dict(),
    }


def format_page(played: Sequence[Played], measured: Meter) -> str:
    """Everything shown, as Markdown."""
    parts = [
        "# shorthaul demo",
        f"shorthaul {__version__}, torch {metadata.version('torch')}, "
        f"Python {platform.python_version()}, {format_seconds(measured.seconds)} in all.",
    ]
    for each in played:
        state = "held" if each.outcome.holds else "**did not hold**"
        parts.append(f"## {each.act.title}")
        parts.append(format_table(each.outcome.headings, each.outcome.rows))
        parts.append(f"Took {format_seconds(each.seconds)}; {state}.")
    parts.append("## Bytes moved")
    parts.append(
        format_table(
            ("from", "to", "why", "bytes", "times"),
            [
                (source, target, why, format_bytes(tally.bytes), f"{tally.times:,}")
                for (source, target, why), tally in sorted(measured.moved.items())
            ],
        )
    )
    return "\n\n".join(parts) + "\n"


def format_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(_escape, line))} |" for line in lines)


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
