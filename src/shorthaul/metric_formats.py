"""Figures in the forms that monitoring reads: Prometheus's text, and OpenTelemetry's JSON.

>>> moved = Metric("moved_bytes", "By", "Bytes moved.", True, (Point(5, (("why", "rows"),)),))
>>> print(format_prometheus([moved]), end="")
# HELP shorthaul_moved_bytes_total Bytes moved.
# TYPE shorthaul_moved_bytes_total counter
shorthaul_moved_bytes_total{why="rows"} 5
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_CUMULATIVE = 2  # OpenTelemetry's AGGREGATION_TEMPORALITY_CUMULATIVE


@dataclass(frozen=True)
class Point:
    """One figure, and what it is of."""

    value: float
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Metric:
    """Figures of one kind."""

    name: str  # without `shorthaul_`
    unit: str  # as OpenTelemetry writes it: By, s, or 1
    meaning: str
    is_total: bool  # it only grows
    points: tuple[Point, ...]


def format_prometheus(metrics: Iterable[Metric]) -> str:
    """The text of an exposition: for a scrape, a push gateway or a file of the node exporter."""
    lines = []
    for metric in metrics:
        name = f"shorthaul_{metric.name}{'_total' if metric.is_total else ''}"
        lines.append(f"# HELP {name} {metric.meaning}")
        lines.append(f"# TYPE {name} {'counter' if metric.is_total else 'gauge'}")
        for point in metric.points:
            labels = ",".join(f'{key}="{_escape(value)}"' for key, value in point.labels)
            lines.append(f"{name}{{{labels}}} {point.value}" if labels else f"{name} {point.value}")
    return "".join(f"{line}\n" for line in lines)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def format_opentelemetry(
    metrics: Iterable[Metric], *, start_nanoseconds: int, now_nanoseconds: int
) -> dict[str, Any]:
    """What a collector takes as JSON at `/v1/metrics`."""
    service = {"key": "service.name", "value": {"stringValue": "shorthaul"}}
    told = []
    for metric in metrics:
        points = [
            {
                "attributes": [
                    {"key": key, "value": {"stringValue": value}} for key, value in point.labels
                ],
                "startTimeUnixNano": str(start_nanoseconds),
                "timeUnixNano": str(now_nanoseconds),
                # OTLP writes integers of 64 bits as text.
                **(
                    {"asInt": str(point.value)}
                    if isinstance(point.value, int)
                    else {"asDouble": point.value}
                ),
            }
            for point in metric.points
        ]
        kind: dict[str, Any] = {"gauge": {"dataPoints": points}}
        if metric.is_total:
            total = {"dataPoints": points, "isMonotonic": True}
            kind = {"sum": total | {"aggregationTemporality": _CUMULATIVE}}
        name = f"shorthaul.{metric.name}"
        told.append({"name": name, "unit": metric.unit, "description": metric.meaning} | kind)
    scope = {
        "scope": {
            "name": "shorthaul",
        },
        "metrics": told,
    }
    return {"resourceMetrics": [{"resource": {"attributes": [service]}, "scopeMetrics": [scope]}]}
