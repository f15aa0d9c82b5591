"""What rows of relational cells say together: the fastest peer of each, and means over all.

A case is `layer, graph, kind`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.ledger import find_fastest

OURS = "shorthaul"
KINDS = ("inference", "training")
MEAN = "geometric mean of"


def is_summary(row: Mapping[str, Any]) -> bool:
    """Whether a row is a mean over others."""
    return str(row["case"]).startswith(MEAN)


def summarize(measured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows for the geometric means over the cells that have a peer."""
    made = []
    for kind in KINDS:
        pairs = list(find_best_peers(measured, kind).values())
        if not pairs:
            continue
        case = f"{MEAN} {len(pairs)} cells, {kind}"
        for arm, rows in (
            ("best peer", [one for one, _ in pairs]),
            (OURS, [two for _, two in pairs]),
        ):
            row: dict[str, Any] = {"case": case, "arm": arm, "baseline": "best peer"}
            row |= {"rounds": max(each["rounds"] for each in rows), "calls": 1, "figures": {}}
            for times in ("wall_seconds", "cpu_seconds"):
                row[times] = {
                    part: geometric_mean([each[times][part] for each in rows])
                    for part in ("low", "median", "high")
                }
            speed = geometric_mean(
                [
                    one["wall_seconds"]["median"] / each["wall_seconds"]["median"]
                    for (one, _), each in zip(pairs, rows, strict=True)
                ]
            )
            row["speedup"] = dict.fromkeys(("low", "median", "high"), speed)
            made.append(row)
    return made


def find_best_peers(
    rows: Sequence[Mapping[str, Any]], kind: str
) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each case of `kind`: the row of its fastest peer, and ours."""
    found = {}
    cells = [row["case"] for row in rows if not is_summary(row)]
    cases = dict.fromkeys(case for case in cells if case.endswith(f", {kind}"))
    for case in cases:
        own = [row for row in rows if row["case"] == case]
        best = find_fastest(row for row in own if row["arm"] != OURS)
        ours = find_fastest(row for row in own if row["arm"] == OURS)
        if best and ours:
            found[case] = best, ours
    return found


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios.

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    return math.exp(sum(math.log(each) for each in values) / len(values))
