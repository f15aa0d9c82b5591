"""Sums over rows of many ranks are those of the whole table, by rows or by owners' sums, whichever is fewer bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import shorthaul as sh
from shorthaul.distributed.tables.gather_plan import Placement
from shorthaul.distributed.tables.sum_plan import plan_sums
from shorthaul.distributed.tables.traffic import Traffic
from shorthaul.errors import RowArgumentError
from tests.distributed.part_folders import drawn_graph, features_of
from tests.distributed.rank_processes import run_ranks


def cut_wide(folder: Path, **options: Any) -> torch.Tensor:
    """A table in float64, so that the order of sums does not matter; its rows under the parts' ids."""
    features = features_of(60, 32).double()
    sh.distributed.partition(
        drawn_graph(), folder, 4, features=features, fan_outs=(3,), batch_size=8, **options
    )
    return features[sh.distributed.open(folder).originals().long()]


def drawn_segments(rank: int, sizes: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Segments, some of them empty, with ids that are there twice; fewer on rank 1."""
    generator = torch.Generator().manual_seed(rank)
    counts = torch.tensor([*sizes, 0][rank == 1 :])
    pointers = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return pointers, torch.randint(-60, 60, (int(pointers[-1]),), generator=generator)


def weights_of(ids: torch.Tensor) -> torch.Tensor:
    return (ids % 5).double() / 4 - 0.3


def expect(
    table: torch.Tensor, rank: int, sizes: tuple[int, ...], op: str, weighted: bool
) -> torch.Tensor:
    pointers, ids = drawn_segments(rank, sizes)
    rows = table[ids] * (weights_of(ids)[:, None] if weighted else 1)
    found = [
        rows[start:stop].sum(0) / (max(1, stop - start) if op == "mean" else 1)
        for start, stop in zip(pointers[:-1].tolist(), pointers[1:].tolist(), strict=True)
    ]
    return torch.stack(found)


def reduce_as(
    rank: int, folder: Path, sizes: tuple[int, ...], op: str, weighted: bool
) -> tuple[torch.Tensor, Traffic]:
    features = sh.distributed.open(folder, shares_machine=False).features()
    pointers, ids = drawn_segments(rank, sizes)
    weights = weights_of(ids) if weighted else None
    return features.gather_reduce(pointers, ids, op, weights), features.report()


@pytest.mark.parametrize(
    ("ranks", "sizes", "op", "weighted"),
    [
        (2, (40, 0, 30), "sum", False),
        (4, (40, 0, 30), "mean", True),
        (4, (1, 1, 1), "mean", False),
        (2, (40, 30), "sum", True),
    ],
)
def test_sums_are_those_of_the_table(
    tmp_path: Path, ranks: int, sizes: tuple[int, ...], op: str, weighted: bool
) -> None:
    table = cut_wide(tmp_path, hot=0.1)
    found = run_ranks(reduce_as, ranks, tmp_path, tmp_path, sizes, op, weighted)
    for rank, (sums, _) in enumerate(found):
        expected = expect(table, rank, sizes, op, weighted)
        torch.testing.assert_close(sums, expected, rtol=1e-12, atol=1e-12)
    reports = [report for _, report in found]
    assert sum(each.far_sums for each in reports) == sum(each.served_sums for each in reports)
    assert any(each.far_sums for each in reports) == (max(sizes) > 1)
    assert sum(each.sent_bytes for each in reports) == sum(each.received_bytes for each in reports)
    alone, report = reduce_as(0, tmp_path, sizes, op, weighted)
    assert report.received_bytes == 0
    torch.testing.assert_close(alone, expect(table, 0, sizes, op, weighted), rtol=1e-12, atol=1e-12)


def both_ways(rank: int, folder: Path) -> tuple[int, int]:
    features = sh.distributed.open(folder, shares_machine=False).features()
    pointers, ids = drawn_segments(rank, (40, 30))
    features.gather_reduce(pointers, ids)
    by_sums = features.report().received_bytes
    features.report().reset()
    features.gather(ids)
    return by_sums, features.report().received_bytes


def test_sums_are_fewer_bytes_than_rows(tmp_path: Path) -> None:
    cut_wide(tmp_path)
    found = run_ranks(both_ways, 2, tmp_path, tmp_path)
    assert sum(one for one, _ in found) < sum(other for _, other in found) / 2


def test_rows_are_asked_for_where_sums_would_be_more() -> None:
    place = Placement((0, 2, 8), (0, 2, 8), (0,), torch.tensor([3]))
    ids = torch.tensor([2, 2, 4, 3, 0])
    pointers = torch.tensor([0, 1, 2, 5])  # row 2 in two segments: a row is fewer than two sums
    plan = plan_sums(pointers, ids, place, row_bytes=100, sum_bytes=96, pair_bytes=4)
    assert not plan.is_partial.any()
    pointers = torch.tensor([0, 5])
    plan = plan_sums(pointers, ids, place, row_bytes=100, sum_bytes=96, pair_bytes=4)
    assert plan.is_partial.tolist() == [True, True, True, False, False]  # hot and own rows are here
    assert (plan.pairs, plan.sums, plan.lengths.tolist()) == ([0, 3], [0, 1], [3])


def test_what_cannot_be_added_up_is_refused(tmp_path: Path) -> None:
    cut_wide(tmp_path, labels=torch.arange(60))
    parts = sh.distributed.open(tmp_path)
    features, labels = parts.features(), parts.labels()
    ids, pointers = torch.arange(4), torch.tensor([0, 4])
    for table, arguments, said in (
        (features, (pointers, ids, "max"), "one of sum, mean"),
        (labels, (pointers, ids), r"torch\.int64"),
        (features, (torch.tensor([0, 3]), ids), "ascending from 0"),
        (features, (pointers, ids, "sum", torch.ones(3)), "one for each id"),
    ):
        with pytest.raises(RowArgumentError, match=said):
            table.gather_reduce(*arguments)
    with pytest.raises(sh.errors.RowIndexError):
        features.gather_reduce(pointers, ids + 60)
