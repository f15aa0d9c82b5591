"""Relational cells as pictures, drawn from rows of the ledger: speed-ups as a heat map, memory as bars."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks.rendering.relational_rows import KINDS, OURS, find_best_peers, is_summary
from benchmarks.rendering.style import COLORS, FAINT, INK, Rows, draw
from shorthaul.units import format_bytes

NOTE = "* a peer failed by memory or time; hatched: every peer did"


def draw_heat_map(rows: Rows) -> str:
    """A panel for inference and one for training: layers across, graphs down."""
    cases = [row["case"].split(", ") for row in rows if not is_summary(row)]
    layers = list(dict.fromkeys(case[0] for case in cases))
    graphs = list(dict.fromkeys(case[1] for case in cases))

    def paint(figure: Figure) -> None:
        (all_axes,) = figure.subplots(len(KINDS), 1, squeeze=False).T
        for axes, kind in zip(all_axes, KINDS, strict=True):
            axes.set_title(f"Speed-up over the fastest peer that ran: {kind}")
            _paint_cells(axes, rows, layers, graphs, kind)
        figure.supxlabel(NOTE, fontsize=8, x=0.01, ha="left")

    return draw(1.1 + 0.95 * len(layers), (0.75 + 0.36 * len(graphs)) * len(KINDS) + 0.3, paint)


def _paint_cells(axes: Axes, rows: Rows, layers: list[str], graphs: list[str], kind: str) -> None:
    best = find_best_peers(rows, kind)
    known = {row["case"] for row in rows}
    failed = {row["case"] for row in rows if not row["rounds"]}
    for line, graph in enumerate(graphs):
        for column, layer in enumerate(layers):
            case = f"{layer}, {graph}, {kind}"
            if case not in known:
                continue
            corner, middle = (column - 0.48, line - 0.46), (column, line)
            pair = best.get(case)
            if pair is None:
                cell = Rectangle(corner, 0.96, 0.92, facecolor="none", edgecolor=FAINT, hatch="//")
                axes.add_patch(cell)
                axes.text(*middle, "no peer", ha="center", va="center")
                continue
            peer, ours = pair
            speed = peer["wall_seconds"]["median"] / ours["wall_seconds"]["median"]
            axes.add_patch(Rectangle(corner, 0.96, 0.92, color=choose_color(speed)))
            label = f"{speed:.3g}x{'*' if case in failed else ''}"
            axes.text(*middle, label, ha="center", va="center", color="#111111")
    axes.set_xlim(-0.5, len(layers) - 0.5)
    axes.set_ylim(len(graphs) - 0.5, -0.5)
    names = [
        name.replace(" ", "\n", 1) if "'" not in name else name.replace("'s ", "'s\n")
        for name in layers
    ]
    axes.set_xticks(range(len(layers)), names)
    axes.set_yticks(range(len(graphs)), graphs)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def draw_memory(rows: Rows) -> str:
    """A bar per arm: what a step took, or, in outline, what an arm without memory enough needs."""
    bars = []
    for row in rows:
        size = row["figures"].get("growth_bytes", row["figures"].get("needs_bytes"))
        if size is not None:
            bars.append((row["case"].split(", ")[0], row["arm"], float(size), bool(row["rounds"])))

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_title("Memory of a training step; in outline: asked for, and failed")
        for place, (_, arm, size, ran) in enumerate(bars):
            color = COLORS[1] if arm == OURS else COLORS[0]
            face, edge = (color, color) if ran else ("none", COLORS[3])
            axes.barh(place, size / 2**30, facecolor=face, edgecolor=edge, gid=f"bar {arm}")
            axes.annotate(
                format_bytes(size),
                (size / 2**30, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                color=INK,
            )
        axes.set_yticks(range(len(bars)), [f"{layer}: {arm}" for layer, arm, *_ in bars])
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.set_xlabel("GiB")
        axes.grid(visible=False, axis="y")

    return draw(8.0, 0.8 + 0.27 * len(bars), paint)


def choose_color(speed: float) -> str:
    """Red where slower, white at equal, green by the logarithm up to a hundred times.

    >>> choose_color(1.0), choose_color(100.0), choose_color(0.5)
    ('#ffffff', '#37a35a', '#f4a0a0')
    """
    if speed < 1.0:
        return "#f4a0a0"
    share = min(1.0, math.log(speed) / math.log(100.0))
    low, high = (255, 255, 255), (55, 163, 90)
    mixed = (round(one + share * (two - one)) for one, two in zip(low, high, strict=True))
    return "#" + "".join(f"{each:02x}" for each in mixed)
