"""Rows come from whoever owns them: equal on 1, 2 and 4 ranks, counted, and the same for repeated ids."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import shorthaul as sh
from shorthaul.distributed.tables.traffic import Traffic
from tests.distributed.part_folders import cut_homogeneous, features_of, typed_graph
from tests.distributed.rank_processes import run_ranks

NODES = 60


def asked_by(rank: int, rows: int = NODES) -> torch.Tensor:
    """Other ids on each rank, some of them twice or negative; none on rank 1."""
    if rank == 1:
        return torch.empty(0, dtype=torch.int64)
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-rows, rows, (25 + rank,), generator=generator)


def gather_as(rank: int, folder: Path, opened: dict, asked: dict) -> tuple[Any, Any, Any]:
    parts = sh.distributed.open(folder, **opened)
    features = parts.features(**asked)
    with sh.meter() as meter:
        rows = features[asked_by(rank)]
        again = features.gather(torch.arange(NODES).int())
    assert again.shape == (NODES, features.shape[1])
    moved = (
        meter.bytes_between("other ranks", "memory"),
        meter.bytes_between("memory", "other ranks"),
    )
    report = features.report()
    assert moved == (report.received_bytes, report.sent_bytes)
    return rows, again, report


def true_rows(folder: Path, made: dict[str, torch.Tensor]) -> torch.Tensor:
    return made["features"][sh.distributed.open(folder).originals().long()]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("shares_machine", [False, True])
def test_rows_are_those_of_the_table(tmp_path: Path, ranks: int, shares_machine: bool) -> None:
    made = cut_homogeneous(tmp_path, 4, hot=0.1)
    expected = true_rows(tmp_path, made)
    found = run_ranks(gather_as, ranks, tmp_path, tmp_path, {"shares_machine": shares_machine}, {})
    for rank, (rows, everything, report) in enumerate(found):
        assert rows.equal(expected[asked_by(rank)])
        assert everything.equal(expected)
        assert report.near_rows + report.hot_rows + report.far_rows == report.unique_rows
        assert report.exchanges == 2
        assert (report.far_rows == 0) == shares_machine
    reports = [report for *_, report in found]
    assert sum(each.far_rows for each in reports) == sum(each.served_rows for each in reports)
    assert sum(each.sent_bytes for each in reports) == sum(each.received_bytes for each in reports)


def test_bytes_on_the_wire_are_what_a_formula_says(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2, method="range")
    found = run_ranks(gather_as, 2, tmp_path, tmp_path, {"shares_machine": False}, {})
    for rank, (*_, report) in enumerate(found):
        is_own = asked_by(rank).remainder(NODES) // 30 == rank
        far = len(asked_by(rank).remainder(NODES)[~is_own].unique()) + 30
        assert report.far_rows == far
        assert report.received_bytes == far * 24 + report.served_rows * 4 + 2 * 32
        assert report.sent_bytes == report.served_rows * 24 + far * 4 + 2 * 32


def test_one_process_owns_everything(tmp_path: Path) -> None:
    made = cut_homogeneous(tmp_path, 3, hot=0.2)
    expected = true_rows(tmp_path, made)
    features = sh.distributed.open(tmp_path).features()
    assert features[asked_by(0)].equal(expected[asked_by(0)])
    assert features.report().received_bytes == 0
    assert features.report().near_rows == features.report().unique_rows
    for storage in ("memory", "disk"):
        table = sh.distributed.open(tmp_path).features(storage=storage)
        assert table[asked_by(0)].equal(expected[asked_by(0)])


@pytest.mark.parametrize(
    ("wire", "row_bytes", "most"), [("bfloat16", 12, 2**-8), ("int8", 10, 1 / 254)]
)
def test_rows_in_fewer_bytes_are_near_and_the_error_is_told(
    tmp_path: Path, wire: str, row_bytes: int, most: float
) -> None:
    made = cut_homogeneous(tmp_path, 2)
    expected = true_rows(tmp_path, made)
    found = run_ranks(gather_as, 2, tmp_path, tmp_path, {"shares_machine": False}, {"wire": wire})
    largest = 0.0
    for rows, everything, report in found:
        assert rows.dtype is torch.float32
        errors = (everything - expected).abs()
        assert (errors <= most * 1.01 * expected.abs().amax(1, keepdim=True)).all()
        largest = max(largest, float(errors.max()))
        assert report.sent_bytes == report.served_rows * row_bytes + report.far_rows * 4 + 64
    assert largest > 0
    assert max(report.largest_error for *_, report in found) == pytest.approx(largest)


def gather_types(rank: int, folder: Path) -> list[torch.Tensor]:
    parts = sh.distributed.open(folder, shares_machine=False)
    tables = [parts.features("paper"), parts.features("author"), parts.labels("paper")]
    return [each.gather(torch.arange(len(each))) for each in tables]


def test_tables_of_many_types_and_dtypes(tmp_path: Path) -> None:
    x = {"paper": features_of(30).bfloat16(), "author": features_of(20, 3).double()}
    labels = {"paper": torch.arange(30)}
    sh.distributed.partition(typed_graph(), tmp_path, 3, features=x, labels=labels)
    parts = sh.distributed.open(tmp_path)
    paper, author = parts.originals("paper").long(), parts.originals("author").long()
    for one, other, number in run_ranks(gather_types, 3, tmp_path, tmp_path):
        assert one.equal(x["paper"][paper])
        assert other.equal(x["author"][author])
        assert number.equal(paper)


def test_a_format_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    parts = sh.distributed.open(tmp_path)
    with pytest.raises(sh.errors.RowArgumentError, match=r"torch\.int64"):
        parts.table("labels", wire="int8")
    with pytest.raises(sh.errors.RowArgumentError, match="bfloat16, int8"):
        parts.features(wire="int4")
    with pytest.raises(sh.errors.RowArgumentError, match="a type with a table `weights`"):
        parts.table("weights", "node")


def test_two_threads_count_for_one_table() -> None:
    traffic, interval = Traffic(), sys.getswitchinterval()

    def count() -> None:
        for _ in range(20_000):
            traffic.add(far_rows=1, near_rows=2)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=count) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(interval)
    assert (traffic.far_rows, traffic.near_rows) == (40_000, 80_000)
