"""The demo as a page."""

from __future__ import annotations

from collections.abc import Sequence

from shorthaul.cli.acts.report import HEADINGS, compare, format_pair, tell_losses
from shorthaul.cli.acts.stage import Played, Run
from shorthaul.pages.charts import draw_bars, draw_lines
from shorthaul.pages.page import Cell, Page
from shorthaul.units import format_bytes, format_seconds

_MIB = 2**20
_RUN = (
    "run",
    "what",
    "last loss",
    "first steps",
    "a step",
    "range",
    "peak memory",
    "to disk",
    "from disk",
)


def format_page(played: Sequence[Played]) -> str:
    """Every act: what happened, memory over time, time, bytes moved."""
    page = Page("shorthaul demo")
    page.say(
        "The same work by plain PyTorch and with shorthaul, each in a process of its own; they take turns, "
        "step by step. Time is the median of the steps after the first ones."
    )
    page.show_table("All acts", HEADINGS, [_sum_up(each) for each in played])
    for each in played:
        page.head(each.act.title)
        page.say(each.sentence())
        page.show_table(f"Runs of {each.act.name}", _RUN, [_row(run) for run in each.runs])
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
            page.say(title.partition(": ")[2].capitalize() + ".", is_quiet=True)
            page.show_chart(draw_lines(lines, unit="MiB", title=title))
        seconds = {run.role: run.seconds for run in each.runs if run.step_seconds}
        if seconds:
            title = f"{each.act.name}: median time of a step"
            page.say(title.partition(": ")[2].capitalize() + ".", is_quiet=True)
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


def _sum_up(played: Played) -> list[Cell]:
    """A row of the first table, which is sorted by ratios."""
    plain, ours = played.run_of("plain"), played.run_of("shorthaul")
    first = [Cell(played.act.name), Cell(tell_losses(played))]
    if plain is None or ours is None:
        return [*first, *(Cell("", 0.0) for _ in range(4))]
    moved = Cell(format_bytes(ours.moved_bytes) if ours.moved_bytes else "-", ours.moved_bytes)
    if not played.act.is_same_work:
        return [*first, *(Cell("-", 0.0) for _ in range(3)), moved]
    return [
        *first,
        Cell(compare(plain.seconds, ours.seconds, "seconds"), ours.seconds / plain.seconds),
        Cell(
            compare(plain.peak_bytes, ours.peak_bytes, "bytes"), ours.peak_bytes / plain.peak_bytes
        ),
        Cell(format_pair(plain.first_seconds, ours.first_seconds, "seconds"), ours.first_seconds),
        moved,
    ]


def _row(run: Run) -> list[Cell]:
    last = run.losses[-1] if run.losses else 0.0
    times = run.step_seconds or (0.0,)
    return [
        Cell(run.role),
        Cell(run.what if run.failure is None else f"failed: {run.failure}"),
        Cell(f"{last:.6f}" if run.losses else "", last),
        Cell(format_seconds(run.first_seconds), run.first_seconds),
        Cell(format_seconds(run.seconds), run.seconds),
        Cell(f"{format_seconds(min(times))} to {format_seconds(max(times))}", max(times)),
        Cell(format_bytes(run.peak_bytes), run.peak_bytes),
        Cell(format_bytes(run.written_bytes), run.written_bytes),
        Cell(format_bytes(run.read_bytes), run.read_bytes),
    ]
