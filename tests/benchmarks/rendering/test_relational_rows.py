"""A cell's speed is against its fastest peer; peers without a time are no peers."""

import pytest

from benchmarks.measuring.answer import Answer
from benchmarks.rendering.relational_rows import (
    find_best_peers,
    geometric_mean,
    is_summary,
    summarize,
)
from tests.benchmarks.runs import make_row

ROWS = [
    make_row("RGCN, a, inference", "plain", 8.0),
    make_row("RGCN, a, inference", "better", 4.0),
    make_row("RGCN, a, inference", "shorthaul", 1.0),
    make_row("RGCN, b, inference", "plain", 9.0),
    make_row("RGCN, b, inference", "shorthaul", 1.0),
    make_row("RGCN, a, training", "shorthaul", 1.0),
]


def test_the_fastest_peer_of_each_cell_is_found() -> None:
    found = find_best_peers(ROWS, "inference")
    assert [(case, best["arm"]) for case, (best, _) in found.items()] == [
        ("RGCN, a, inference", "better"),
        ("RGCN, b, inference", "plain"),
    ]
    assert find_best_peers(ROWS, "training") == {}


def test_a_peer_without_a_time_is_not_the_fastest() -> None:
    answer = Answer(rows=ROWS[3:5])
    answer.leave_out("RGCN, b, inference", "fails", "plain", needs_bytes=1)
    (found,) = find_best_peers(answer.rows, "inference").values()
    assert found[0]["arm"] == "plain"


def test_means_are_added_as_rows() -> None:
    peer, ours = summarize(ROWS)
    assert (peer["case"], peer["arm"]) == ("geometric mean of 2 cells, inference", "best peer")
    assert peer["speedup"]["median"] == pytest.approx(1.0)
    assert ours["speedup"]["median"] == pytest.approx(6.0)
    assert peer["wall_seconds"]["median"] == pytest.approx(6.0)
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_means_are_no_cells() -> None:
    means = summarize(ROWS)
    assert all(is_summary(row) for row in means)
    assert find_best_peers(means, "inference") == {}
    assert summarize([*ROWS, *means]) == means
