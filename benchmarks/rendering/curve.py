"""A curve of time against memory as a picture, drawn from rows of the ledger.

Plain SVG, written here: the same rows give the same bytes everywhere, so that a stale picture is
found as a stale table is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 430, 300  # of one panel
LEFT, TOP, BOTTOM = 62, 34, 46
COLOURS = ("#444444", "#1f77b4", "#17a2b8", "#d62728", "#9467bd", "#2ca02c", "#ff7f0e")
MEBIBYTE = 2**20

Point = tuple[float, float, str]  # memory, time, and what it is


Rows = Sequence[Mapping[str, Any]]


def draw_curve(rows: Rows, panels: Mapping[str, str]) -> str:
    """One panel per figure in `panels` (its name and what to call it), one line per arm."""
    return _draw(rows, {title: _points_of(rows, figure) for figure, title in panels.items()})


def draw_curves(rows: Rows, figure: str, panels: Mapping[str, str]) -> str:
    """One panel of `figure` for the cases with each ending in `panels`, one line per arm."""
    chosen = {end: [row for row in rows if row["case"].endswith(end)] for end in panels}
    return _draw(rows, {title: _points_of(chosen[end], figure) for end, title in panels.items()})


def _draw(rows: Rows, panels: Mapping[str, Mapping[str, Sequence[Point]]]) -> str:
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    colours = {arm: COLOURS[index % len(COLOURS)] for index, arm in enumerate(arms)}
    height = HEIGHT + 22 * math.ceil(len(arms) / 3)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(panels)}" height="{height}" '
        f'viewBox="0 0 {WIDTH * len(panels)} {height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index, (title, points) in enumerate(panels.items()):
        parts.append(f'<g transform="translate({index * WIDTH} 0)">')
        parts += _draw_panel(points, title, colours)
        parts.append("</g>")
    for index, arm in enumerate(arms):
        x, y = 20 + 210 * (index % 3), HEIGHT + 12 + 22 * (index // 3)
        parts.append(f'<rect x="{x}" y="{y - 9}" width="12" height="10" fill="{colours[arm]}"/>')
        parts.append(f'<text x="{x + 18}" y="{y}">{escape(arm)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _points_of(rows: Rows, figure: str) -> dict[str, list[Point]]:
    points: dict[str, list[Point]] = {}
    for row in rows:
        if figure in row["figures"]:
            memory, seconds = row["figures"][figure] / MEBIBYTE, row["wall_seconds"]["median"]
            points.setdefault(row["arm"], []).append((memory, seconds, row["case"]))
    return points


def _draw_panel(
    points: Mapping[str, Sequence[Point]], title: str, colours: Mapping[str, str]
) -> list[str]:
    everything = [each for line in points.values() for each in line]
    if not everything:
        return []
    xs = choose_ticks(max(each[0] for each in everything))
    ys = choose_ticks(max(each[1] for each in everything))

    def x_of(memory: float) -> float:
        return LEFT + memory / xs[-1] * (WIDTH - LEFT - 20)

    def y_of(seconds: float) -> float:
        return HEIGHT - BOTTOM - seconds / ys[-1] * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<text x="{LEFT}" y="18" font-weight="bold">{escape(title)}</text>',
        *_draw_ticks(xs, ys, x_of, y_of),
        f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle">MiB</text>',
        f'<text x="14" y="{HEIGHT / 2:.0f}" transform="rotate(-90 14 {HEIGHT / 2:.0f})" '
        'text-anchor="middle">seconds per step</text>',
    ]
    for arm, line in points.items():
        path = " ".join(f"{x_of(memory):.1f},{y_of(seconds):.1f}" for memory, seconds, _ in line)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colours[arm]}" stroke-width="1.5"/>'
        )
        for memory, seconds, case in line:
            words = f"{arm}, {case}: {memory:.0f} MiB, {seconds:.2f} s"
            parts.append(
                f'<circle cx="{x_of(memory):.1f}" cy="{y_of(seconds):.1f}" r="3.5" '
                f'fill="{colours[arm]}"><title>{escape(words)}</title></circle>'
            )
    return parts


def _draw_ticks(
    xs: Sequence[float],
    ys: Sequence[float],
    x_of: Callable[[float], float],
    y_of: Callable[[float], float],
) -> list[str]:
    parts = []
    for x in xs:
        at = f"{x_of(x):.1f}"
        parts.append(f'<path d="M{at} {TOP}V{HEIGHT - BOTTOM}" stroke="#dddddd"/>')
        parts.append(f'<text x="{at}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    for y in ys:
        at = f"{y_of(y):.1f}"
        parts.append(f'<path d="M{LEFT} {at}H{WIDTH - 20}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{float(at) + 4:.1f}" text-anchor="end">{y:g}</text>')
    return parts


def choose_ticks(largest: float) -> list[float]:
    """From 0 in round steps to the first one that is not below `largest`.

    >>> choose_ticks(272.4)
    [0, 50, 100, 150, 200, 250, 300]
    """
    size = 10 ** math.floor(math.log10(largest / 4)) if largest > 0 else 1.0
    step = next(size * times for times in (1, 2, 2.5, 5, 10) if largest / (size * times) <= 7)
    count = math.ceil(largest / step - 1e-9)
    return [round(step * index, 10) for index in range(max(1, count) + 1)]
