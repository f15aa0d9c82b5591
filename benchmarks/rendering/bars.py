"""Bars as a picture, drawn from rows of the ledger: shares of peak by layer, and what each step brings.

>>> mean_shares([{"case": "a", "arm": "x", "figures": {"peak_share": 0.25}},
...              {"case": "b", "arm": "x", "figures": {"peak_share": 1.0}}])
{'x': 0.5}
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import geometric_mean

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from benchmarks.rendering.style import Rows, draw, name_colors, put_legend, say_values

Groups = Mapping[str, Mapping[str, float]]  # group -> arm -> share


def draw_layer_shares(rows: Rows, *, case_ends: str, title: str) -> str:
    """A group of bars for each case whose name ends with `case_ends`."""
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["case"].endswith(case_ends) and "peak_share" in row["figures"]:
            name = row["case"].removesuffix(case_ends).strip()
            groups.setdefault(name, {})[row["arm"]] = row["figures"]["peak_share"]
    return draw_bars(groups, title)


def draw_steps(rows: Rows, *, title: str) -> str:
    """One bar for each arm, in their order: the geometric mean of all cases."""
    return draw_bars({arm: {"mean": share} for arm, share in mean_shares(rows).items()}, title)


def mean_shares(rows: Rows) -> dict[str, float]:
    """The geometric mean of each arm's shares of peak."""
    shares: dict[str, list[float]] = {}
    for row in rows:
        if "peak_share" in row["figures"]:
            shares.setdefault(row["arm"], []).append(row["figures"]["peak_share"])
    return {arm: geometric_mean(values) for arm, values in shares.items()}


def draw_bars(groups: Groups, title: str) -> str:
    """Groups of bars from zero to the largest share, and never less than 100 %."""
    arms = list(dict.fromkeys(arm for group in groups.values() for arm in group))
    colors = name_colors(arms)
    thick = 0.8 / max(1, len(arms))

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for place, arm in enumerate(arms):
            at = [
                n + (place + 0.5) * thick - 0.4 for n, g in enumerate(groups.values()) if arm in g
            ]
            shares = [group[arm] for group in groups.values() if arm in group]
            for bar in axes.bar(at, shares, thick, color=colors[arm]):
                bar.set_gid(f"bar {arm} {bar.get_height():.4f}")
        axes.set_xticks(
            range(len(groups)), [*groups], rotation=35, ha="right", rotation_mode="anchor"
        )
        axes.set_ylim(
            0, max([1.0, *(share * 1.03 for g in groups.values() for share in g.values())])
        )
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_title(title)
        say_values(axes, "")
        if len(arms) > 1:
            put_legend(figure, colors)

    return draw(max(5.0, 0.75 * len(groups)), 3.6, paint)
