"""Charts of a page: Matplotlib's SVG, whose text and lines take the page's own colors, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from shorthaul.errors import MissingExtraError

# Tells lines and text from series; the page's style sheet gives it a color.
_INK = "#010203"
# Distinguishable beside each other on white and on black, also for those who see few colors.
_COLORS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999933", "#cc8866", "#7788dd", "#559988",
)  # fmt: skip


def require_charts() -> None:
    """Raise `MissingExtraError` where no chart can be drawn: before work whose report is to have some."""
    _matplotlib()


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report", "an HTML report") from error
    return matplotlib


def _pyplot() -> Any:
    _matplotlib().use("svg")
    import matplotlib.pyplot as pyplot

    return pyplot


def draw_areas(
    seconds: Sequence[float], series: Mapping[str, Sequence[float]], *, unit: str, title: str
) -> str:
    """Amounts over time, stacked."""
    figure, axes = _begin()
    axes.stackplot(
        seconds, *series.values(), labels=list(series), colors=_cycle(len(series)), step="post"
    )
    axes.set_xlabel("seconds")
    axes.set_ylabel(unit)
    _name(axes, len(series))
    return _finish(figure, title)


def draw_lines(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    unit: str,
    title: str,
    across: str = "seconds",
) -> str:
    """Amounts over time, beside each other."""
    figure, axes = _begin()
    for (name, (seconds, amounts)), color in zip(lines.items(), _cycle(len(lines)), strict=True):
        axes.plot(seconds, amounts, label=name, color=color, linewidth=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(across)
    if all(isinstance(each, int) for seconds, _ in lines.values() for each in seconds):
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel(unit)
    _name(axes, len(lines))
    return _finish(figure, title)


def draw_bars(amounts: Mapping[str, float], *, unit: str, title: str) -> str:
    """One bar for each name, the first at the top."""
    figure, axes = _begin(height=0.9 + 0.32 * len(amounts))
    names = list(amounts)[::-1]
    bars = axes.barh(names, [amounts[each] for each in names], color=_COLORS[0])
    axes.bar_label(bars, fmt=" {:,.4g}", color=_INK, fontsize=9)
    axes.margins(x=0.15)
    axes.set_xlabel(unit)
    return _finish(figure, title)


def _name(axes: Any, count: int) -> None:
    """Names of series, below, where also a phone shows them."""
    if count > 1:
        axes.legend(
            loc="upper left", bbox_to_anchor=(0.0, -0.18), ncols=3, frameon=False, fontsize=9
        )


def _cycle(count: int) -> list[str]:
    return [_COLORS[index % len(_COLORS)] for index in range(count)]


def _begin(height: float = 3.2) -> tuple[Any, Any]:
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(8.0, height))
    axes.spines[["top", "right"]].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(_INK)
    axes.tick_params(colors=_INK, labelsize=9)
    axes.xaxis.label.set_color(_INK)
    axes.yaxis.label.set_color(_INK)
    return figure, axes


def _finish(figure: Any, title: str) -> str:
    """The figure as an SVG element that a reader's machine can read out."""
    pyplot = _pyplot()
    for axes in figure.axes:
        legend = axes.get_legend()
        for text in () if legend is None else legend.get_texts():
            text.set_color(_INK)
    written = io.StringIO()
    # Letters stay letters: they scale, can be searched, and take the page's font.
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure.savefig(
            written, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None}
        )
    pyplot.close(figure)
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    prefix = re.sub(r"\W+", "-", title)  # ids of two charts on one page must differ
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = re.sub(r'(xlink:href|href)="#', rf'\1="#{prefix}-', svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{_attribute(title)}" ', 1)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
