"""The demo as a page."""

from __future__ import annotations

from collections.abc import Sequence

from shorthaul.cli.acts.report import HEADINGS
from shorthaul.cli.acts.stage import Played, Run
from shorthaul.pages.charts import draw_bars, draw_lines
from shorthaul.pages.page import Cell, Page
from shorthaul.units import format_bytes, format_seconds

_MIB = 2**20


def format_page(played: Sequence[Played]) -> str:
    """Every act: what happened, memory over time, time, bytes moved."""
    page = Page("shorthaul demo")
    page.say("The same work by plain PyTorch and with shorthaul, each in a process of its own.")
    page.show_table("All runs", HEADINGS, [_row(each, run) for each in played for run in each.runs])
    for each in played:
        page.head(each.act.title)
        page.say(each.sentence())
        lines = {
            run.role: (
                [seconds for seconds, _ in run.resident],
                [size / _MIB for _, size in run.resident],
            )
            for run in each.runs
            if run.resident
        }
        if lines:
            title = f"{each.act.name}: resident memory over time"
            page.show_chart(draw_lines(lines, unit="MiB", title=title))
        seconds = {run.role: run.seconds for run in each.runs if run.failure is None}
        if seconds:
            title = f"{each.act.name}: time without the first steps"
            page.show_chart(draw_bars(seconds, unit="seconds", title=title))
        rows = [
            [
                Cell(run.role),
                Cell(f"{one['source']} to {one['target']}"),
                Cell(one["why"]),
                Cell(format_bytes(one["bytes"]), one["bytes"]),
            ]
            for run in each.runs
            for one in run.extra.get("meter", {}).get("moved", ())
        ]
        if rows:
            page.show_table("Bytes by journey", ("run", "journey", "why", "bytes"), rows)
    page.head("What to try next")
    page.say("Your own script, as it is:")
    page.show_code(
        "shorthaul advise train.py\nshorthaul run --memory 8GiB --report out.html train.py"
    )
    return page.finish()


def _row(played: Played, run: Run) -> list[Cell]:
    what = run.what if run.failure is None else f"failed: {run.failure}"
    last = run.losses[-1] if run.losses else 0.0
    return [
        Cell(played.act.name),
        Cell(f"{run.role}: {what}"),
        Cell(f"{last:.6f}" if run.losses else "", last),
        Cell(format_seconds(run.first_seconds), run.first_seconds),
        Cell(format_seconds(run.seconds), run.seconds),
        Cell(format_bytes(run.peak_bytes), run.peak_bytes),
        Cell(format_bytes(run.written_bytes), run.written_bytes),
        Cell(format_bytes(run.read_bytes), run.read_bytes),
    ]
