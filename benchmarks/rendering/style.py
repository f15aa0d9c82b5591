"""One style for all pictures: drawn by matplotlib, saved as SVG that follows the reader's light or dark theme.

Fonts and bytes differ between versions of matplotlib, so a picture says what it was drawn from, and is
stale when that changed, not when its bytes did.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Stand for the reader's text and lines while drawing, and become CSS variables when saved.
INK, FAINT = "#010203", "#c1c2c3"
COLORS = ("#7f7f7f", "#1f77b4", "#17a2b8", "#d62728", "#9467bd", "#2ca02c", "#ff7f0e")
_THEMES = """<style>
:root { --ink: #1f2328; --faint: #d0d7de; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --faint: #3d444d; } }
</style>"""
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "shorthaul",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    **dict.fromkeys(("axes.edgecolor", "grid.color"), FAINT),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
}

Rows = Sequence[Mapping[str, Any]]


def draw(width: float, height: float, paint: Callable[[Figure], None]) -> str:
    """The SVG of what `paint` puts on a figure of so many inches; nothing is cut off at its edges."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height))
        paint(figure)
        file = io.StringIO()
        figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = re.sub(r"^.*?(?=<svg)", "", file.getvalue(), count=1, flags=re.DOTALL)
    text = text.replace(INK, "var(--ink)").replace(FAINT, "var(--faint)")
    return (
        "\n".join(
            line.rstrip() for line in text.replace("<defs>", _THEMES + "\n<defs>", 1).splitlines()
        )
        + "\n"
    )


def name_colors(names: Sequence[str]) -> dict[str, str]:
    """A color for each name, in their order."""
    return {name: COLORS[index % len(COLORS)] for index, name in enumerate(names)}


def put_legend(figure: Figure, colors: Mapping[str, str]) -> None:
    """What each color stands for, below everything."""
    marks = [matplotlib.patches.Patch(color=color) for color in colors.values()]
    figure.legend(marks, [*colors], loc="outside lower left", ncols=3)


def say_values(axes: Axes, label: str) -> None:
    """A vertical axis with a label, and lines for its values only."""
    axes.set_ylabel(label)
    axes.grid(visible=False, axis="x")


def digest_sources(rows: Rows, draw_rows: Callable[..., str]) -> str:
    """What a picture depends on: its rows, how it is drawn, and this style."""
    function = draw_rows.func if isinstance(draw_rows, partial) else draw_rows
    options = repr(draw_rows.keywords) if isinstance(draw_rows, partial) else ""
    module = inspect.getmodule(function)
    texts = [
        inspect.getsource(each) for each in (module, inspect.getmodule(digest_sources)) if each
    ]
    content = json.dumps(list(rows), sort_keys=True) + options + "".join(texts)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def sign(picture: str, digest: str) -> str:
    """The picture with a word on what it was drawn from."""
    return f"{picture.rstrip()}\n<!-- drawn from {digest} -->\n"


def read_signature(picture: str) -> str | None:
    """What a picture says it was drawn from."""
    found = re.search(r"<!-- drawn from (\w+) -->\s*$", picture)
    return found[1] if found else None
