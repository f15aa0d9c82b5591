"""What monitoring reads is what the meter counted, by the formats' own parsers."""

from __future__ import annotations

import json
import sys

import pytest

import shorthaul as sh
from shorthaul.meter import record_compile, record_kept, record_move, record_stall
from shorthaul.metric_formats import Metric, Point, format_prometheus


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> sh.Meter:
    monkeypatch.setattr(
        sys.modules["shorthaul.meter"], "_kept_now", {}
    )  # what other tests of this process keep
    with sh.meter() as m:
        record_move("disk", "memory", 4096, 'rows of "x"\\\n', times=3)
        record_stall(0.25, "prefetch")
        record_compile("gather")
        record_kept(100, "buffers")
    record_kept(-100, "buffers")
    return m


def test_prometheus_text_is_the_whole_of_it(counted: sh.Meter) -> None:
    counted._is_peak_ours, counted._peak_bytes = True, 2**20
    assert counted.to_prometheus() == (
        "# HELP shorthaul_moved_bytes_total Bytes moved.\n"
        "# TYPE shorthaul_moved_bytes_total counter\n"
        'shorthaul_moved_bytes_total{source="disk",target="memory",why="rows of \\"x\\"\\\\\\n"} 4096\n'
        "# HELP shorthaul_moves_total Events of moving.\n"
        "# TYPE shorthaul_moves_total counter\n"
        'shorthaul_moves_total{source="disk",target="memory",why="rows of \\"x\\"\\\\\\n"} 3\n'
        "# HELP shorthaul_kept_bytes Bytes held now.\n"
        "# TYPE shorthaul_kept_bytes gauge\n"
        'shorthaul_kept_bytes{why="buffers"} 100\n'
        "# HELP shorthaul_peak_kept_bytes The most bytes held at a time.\n"
        "# TYPE shorthaul_peak_kept_bytes gauge\n"
        "shorthaul_peak_kept_bytes 100\n"
        "# HELP shorthaul_stall_seconds_total Time waited.\n"
        "# TYPE shorthaul_stall_seconds_total counter\n"
        'shorthaul_stall_seconds_total{why="prefetch"} 0.25\n'
        "# HELP shorthaul_compiles_total Kernels compiled.\n"
        "# TYPE shorthaul_compiles_total counter\n"
        'shorthaul_compiles_total{kernel="gather"} 1\n'
        "# HELP shorthaul_peak_resident_bytes The most memory that was resident at a time.\n"
        "# TYPE shorthaul_peak_resident_bytes gauge\n"
        "shorthaul_peak_resident_bytes 1048576\n"
    )


def test_prometheus_reads_it(counted: sh.Meter) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    families = {
        each.name: each for each in parser.text_string_to_metric_families(counted.to_prometheus())
    }
    (moved,) = families["shorthaul_moved_bytes"].samples
    assert moved.labels == {"source": "disk", "target": "memory", "why": 'rows of "x"\\\n'}
    assert moved.value == 4096
    assert families["shorthaul_stall_seconds"].type == "counter"


def test_opentelemetrys_form(counted: sh.Meter) -> None:
    told = json.loads(json.dumps(counted.to_opentelemetry()))
    (scope,) = told["resourceMetrics"][0]["scopeMetrics"]
    metrics = {each["name"]: each for each in scope["metrics"]}
    (point,) = metrics["shorthaul.moved_bytes"]["sum"]["dataPoints"]
    assert point["asInt"] == "4096"
    assert int(point["startTimeUnixNano"]) <= int(point["timeUnixNano"])
    assert metrics["shorthaul.moved_bytes"]["unit"] == "By"
    assert metrics["shorthaul.moved_bytes"]["sum"]["isMonotonic"] is True
    (point,) = metrics["shorthaul.stall_seconds"]["sum"]["dataPoints"]
    assert point["asDouble"] == 0.25
    assert metrics["shorthaul.kept_bytes"]["gauge"]["dataPoints"][0]["asInt"] == "100"


def test_a_collector_reads_it(counted: sh.Meter) -> None:
    json_format = pytest.importorskip("google.protobuf.json_format")
    service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    request = json_format.ParseDict(
        counted.to_opentelemetry(), service.ExportMetricsServiceRequest()
    )
    metrics = request.resource_metrics[0].scope_metrics[0].metrics
    assert {each.name for each in metrics} >= {"shorthaul.moved_bytes", "shorthaul.stall_seconds"}
    assert metrics[0].sum.data_points[0].as_int == 4096


def test_a_metric_without_labels_has_no_braces() -> None:
    text = format_prometheus([Metric("x", "1", "An x.", False, (Point(1.5),))])
    assert text.splitlines()[-1] == "shorthaul_x 1.5"
