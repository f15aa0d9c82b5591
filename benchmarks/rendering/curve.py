"""A curve of time against memory as a picture, drawn from rows of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from benchmarks.rendering.style import Rows, draw, name_colors, put_legend

MEBIBYTE = 2**20

Point = tuple[float, float]  # memory, time


def draw_curve(rows: Rows, panels: Mapping[str, str]) -> str:
    """One panel per figure in `panels` (its name and what to call it), one line per arm."""
    return _draw(rows, {title: points_of(rows, figure) for figure, title in panels.items()})


def draw_curves(rows: Rows, figure: str, panels: Mapping[str, str]) -> str:
    """One panel of `figure` for the cases with each ending in `panels`, one line per arm."""
    chosen = {end: [row for row in rows if row["case"].endswith(end)] for end in panels}
    return _draw(rows, {title: points_of(chosen[end], figure) for end, title in panels.items()})


def points_of(rows: Rows, figure: str) -> dict[str, list[Point]]:
    """Memory and time of each arm's rows that have the figure."""
    points: dict[str, list[Point]] = {}
    for row in rows:
        if figure in row["figures"]:
            memory, seconds = row["figures"][figure] / MEBIBYTE, row["wall_seconds"]["median"]
            points.setdefault(row["arm"], []).append((memory, seconds))
    return points


def _draw(rows: Rows, panels: Mapping[str, Mapping[str, Sequence[Point]]]) -> str:
    colors = name_colors(list(dict.fromkeys(row["arm"] for row in rows)))

    def paint(figure: Figure) -> None:
        (all_axes,) = figure.subplots(1, len(panels), squeeze=False)
        for axes, (title, lines) in zip(all_axes, panels.items(), strict=True):
            for arm, line in lines.items():
                (drawn,) = axes.plot(*zip(*line, strict=True), "o-", ms=4, color=colors[arm])
                drawn.set_gid(f"line {arm} of {len(line)}")
            axes.set_title(title)
            axes.set_xlabel("MiB")
            axes.set_ylabel("seconds per step")
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
        put_legend(figure, colors)

    return draw(4.4 * len(panels), 3.9, paint)
