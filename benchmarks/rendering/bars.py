"""Bars as a picture, drawn from rows of the ledger: shares of peak by layer, and what each step brings.

Plain SVG, written here, as `curve` does: the same rows give the same bytes everywhere.

>>> mean_shares([{"case": "a", "arm": "x", "figures": {"peak_share": 0.25}},
...              {"case": "b", "arm": "x", "figures": {"peak_share": 1.0}}])
{'x': 0.5}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.rendering.curve import COLOURS

HEIGHT, LEFT, TOP, BOTTOM = 320, 52, 34, 70
BAR, GAP = 14, 16  # width of a bar, and the space between two groups

Rows = Sequence[Mapping[str, Any]]
Groups = Mapping[str, Mapping[str, float]]  # group -> arm -> share


def draw_layer_shares(rows: Rows, *, case_ends: str, title: str) -> str:
    """A group of bars per case whose name ends with `case_ends`, which is left away."""
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["case"].endswith(case_ends) and "peak_share" in row["figures"]:
            name = row["case"].removesuffix(case_ends).strip()
            groups.setdefault(name, {})[row["arm"]] = row["figures"]["peak_share"]
    return draw_bars(groups, title)


def draw_steps(rows: Rows, *, title: str) -> str:
    """One bar per arm, in their order: the geometric mean of all cases."""
    return draw_bars({arm: {"mean": share} for arm, share in mean_shares(rows).items()}, title)


def mean_shares(rows: Rows) -> dict[str, float]:
    """The geometric mean of each arm's shares of peak."""
    shares: dict[str, list[float]] = {}
    for row in rows:
        if "peak_share" in row["figures"]:
            shares.setdefault(row["arm"], []).append(row["figures"]["peak_share"])
    return {
        arm: math.exp(sum(math.log(each) for each in values) / len(values))
        for arm, values in shares.items()
    }


def draw_bars(groups: Groups, title: str) -> str:
    """Groups of bars from 0 to 100 %; a legend where there is more than one kind of bar."""
    arms = list(dict.fromkeys(arm for group in groups.values() for arm in group))
    colours = {arm: COLOURS[index % len(COLOURS)] for index, arm in enumerate(arms)}
    # A single bar has its name below it, slanted: it needs the width of a few letters.
    wide = max(BAR * len(arms), 44) + GAP
    width = LEFT + wide * max(1, len(groups)) + 30
    has_legend = len(arms) > 1
    height = HEIGHT + (22 * math.ceil(len(arms) / 3) if has_legend else 40)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-weight="bold">{escape(title)}</text>',
        *_draw_lines(width),
    ]
    for index, (name, group) in enumerate(groups.items()):
        parts += _draw_group(name, group, LEFT + 10 + index * wide, wide - GAP, colours)
    for index, arm in enumerate(arms if has_legend else ()):
        x, y = 20 + 210 * (index % 3), HEIGHT + 12 + 22 * (index // 3)
        parts.append(f'<rect x="{x}" y="{y - 9}" width="12" height="10" fill="{colours[arm]}"/>')
        parts.append(f'<text x="{x + 18}" y="{y}">{escape(arm)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _y_of(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _draw_lines(width: int) -> list[str]:
    parts = []
    for percent in range(0, 101, 20):
        y = _y_of(percent / 100)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{width - 20}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{percent} %</text>')
    return parts


def _draw_group(
    name: str, group: Mapping[str, float], left: int, wide: int, colours: Mapping[str, str]
) -> list[str]:
    parts = []
    for index, arm in enumerate(colours):
        if arm in group:
            share = group[arm]
            y = _y_of(share)
            parts.append(
                f'<rect x="{left + index * BAR}" y="{y:.1f}" width="{BAR - 2}" '
                f'height="{HEIGHT - BOTTOM - y:.1f}" fill="{colours[arm]}">'
                f"<title>{escape(f'{name}, {arm}: {100 * share:.1f} %')}</title></rect>"
            )
    x, y = left + wide // 2, HEIGHT - BOTTOM + 14
    parts.append(
        f'<text x="{x}" y="{y}" text-anchor="end" transform="rotate(-35 {x} {y})">{escape(name)}</text>'
    )
    return parts
