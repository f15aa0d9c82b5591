"""Relational cells as pictures, drawn from rows of the ledger: speed-ups as a heat map, memory as bars.

Plain SVG, written here, as `curve` does: the same rows give the same bytes everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.rendering.curve import COLOURS
from benchmarks.rendering.relational_rows import KINDS, OURS, find_best_peers, is_summary
from shorthaul.units import format_bytes

CELL_WIDTH, CELL_HEIGHT, LEFT, TOP = 86, 34, 140, 62
BAR_HEIGHT, BAR_LEFT, BAR_WIDTH = 18, 300, 420

Rows = Sequence[Mapping[str, Any]]


def draw_heat_map(rows: Rows) -> str:
    """A panel for inference and one for training: layers across, graphs down."""
    cases = [row["case"].split(", ") for row in rows if not is_summary(row)]
    layers = list(dict.fromkeys(case[0] for case in cases))
    graphs = list(dict.fromkeys(case[1] for case in cases))
    width = LEFT + CELL_WIDTH * len(layers) + 20
    panel = TOP + CELL_HEIGHT * len(graphs) + 20
    height = panel * len(KINDS) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index, kind in enumerate(KINDS):
        best = find_best_peers(rows, kind)
        known = {row["case"] for row in rows}
        parts.append(f'<g transform="translate(0 {index * panel})">')
        title = f"Speed-up over the fastest peer that ran: {kind}"
        parts.append(f'<text x="10" y="20" font-weight="bold">{title}</text>')
        for column, layer in enumerate(layers):
            x = LEFT + CELL_WIDTH * column + CELL_WIDTH // 2
            for line, words in enumerate(_halves(layer)):
                y = 38 + 14 * line
                parts.append(f'<text x="{x}" y="{y}" text-anchor="middle">{escape(words)}</text>')
        for line, graph in enumerate(graphs):
            y = TOP + CELL_HEIGHT * line
            parts.append(
                f'<text x="{LEFT - 8}" y="{y + 22}" text-anchor="end">{escape(graph)}</text>'
            )
            for column, layer in enumerate(layers):
                case = f"{layer}, {graph}, {kind}"
                if case in known:
                    parts += _draw_cell(LEFT + CELL_WIDTH * column, y, case, best.get(case), rows)
        parts.append("</g>")
    note = "* a peer failed by memory or time; hatched: every peer did"
    parts.append(f'<text x="10" y="{height - 8}" font-size="11">{note}</text>')
    return "\n".join([*parts, "</svg>\n"])


def draw_memory(rows: Rows) -> str:
    """A bar per arm: what a step took, or, in outline, what an arm without memory enough needs."""
    bars = []
    for row in rows:
        size = row["figures"].get("growth_bytes", row["figures"].get("needs_bytes"))
        if size is not None:
            bars.append((row["case"].split(", ")[0], row["arm"], float(size), bool(row["rounds"])))
    most = max((size for _, _, size, _ in bars), default=1.0)
    height = 44 + (BAR_HEIGHT + 6) * len(bars) + 12
    width = BAR_LEFT + BAR_WIDTH + 120
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="10" y="20" font-weight="bold">Memory of a training step; in outline: asked for, '
        "and failed</text>",
    ]
    for index, (layer, arm, size, ran) in enumerate(bars):
        y = 34 + (BAR_HEIGHT + 6) * index
        colour = COLOURS[1] if arm == OURS else COLOURS[0]
        wide = max(1.0, BAR_WIDTH * size / most)
        fill = f'fill="{colour}"' if ran else f'fill="none" stroke="{COLOURS[3]}"'
        told = format_bytes(size)
        parts.append(
            f'<text x="{BAR_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(f"{layer}: {arm}")}</text>'
        )
        parts.append(
            f'<rect x="{BAR_LEFT}" y="{y}" width="{wide:.1f}" height="{BAR_HEIGHT}" {fill}>'
            f"<title>{escape(f'{layer}, {arm}: {told}')}</title></rect>"
        )
        parts.append(f'<text x="{BAR_LEFT + wide + 6:.1f}" y="{y + 13}">{told}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _draw_cell(
    x: int, y: int, case: str, best: tuple[Mapping[str, Any], Mapping[str, Any]] | None, rows: Rows
) -> list[str]:
    failures = [row["arm"] for row in rows if row["case"] == case and not row["rounds"]]
    mark = "*" if failures else ""
    if best is None:
        label, fill, told = "no peer", "#bbbbbb", f"{case}: no peer ran ({', '.join(failures)})"
        mark = ""
    else:
        peer, ours = best
        speed = peer["wall_seconds"]["median"] / ours["wall_seconds"]["median"]
        label, fill = f"{speed:.3g}x", choose_colour(speed)
        told = f"{case}: {speed:.3g} times as fast as {peer['arm']}"
        told += f"; failed: {', '.join(failures)}" if failures else ""
    frame = f'x="{x + 1}" y="{y + 1}" width="{CELL_WIDTH - 2}" height="{CELL_HEIGHT - 2}"'
    parts = [f'<rect {frame} fill="{fill}"><title>{escape(told)}</title></rect>']
    if best is None:
        rise = CELL_HEIGHT - 4
        parts += [
            f'<path d="M{x + offset} {y + CELL_HEIGHT - 2}l{rise} -{rise}" stroke="#999999"/>'
            for offset in range(8, CELL_WIDTH - CELL_HEIGHT, 12)
        ]
    middle = f'x="{x + CELL_WIDTH // 2}" y="{y + 22}" text-anchor="middle"'
    return [*parts, f"<text {middle}>{label}{mark}</text>"]


def choose_colour(speed: float) -> str:
    """Red where slower, white at equal, green by the logarithm up to a hundred times.

    >>> choose_colour(1.0), choose_colour(100.0), choose_colour(0.5)
    ('#ffffff', '#37a35a', '#f4a0a0')
    """
    if speed < 1.0:
        return "#f4a0a0"
    share = min(1.0, math.log(speed) / math.log(100.0))
    low, high = (255, 255, 255), (55, 163, 90)
    mixed = (round(one + share * (two - one)) for one, two in zip(low, high, strict=True))
    return "#" + "".join(f"{each:02x}" for each in mixed)


def _halves(name: str) -> tuple[str, str]:
    """The name of a layer, and what is said of it."""
    for begin in ("DGL's HGT", "HGT", "RGAT", "RGCN"):
        if name.startswith(begin):
            return begin, name.removeprefix(begin).strip()
    return name, ""
