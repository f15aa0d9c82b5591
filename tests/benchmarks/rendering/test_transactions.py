"""The model of a transfer: what it says where the answer is known."""

from __future__ import annotations

import pytest

from benchmarks.rendering.transactions import (
    FASTEST_GATHER,
    LINKS,
    find_gather_rate,
    model_reduction,
    render_transactions,
    render_transfer_model,
)

ROW = {"row_bytes": 512, "lines": 4.0}  # no byte too many


def test_half_is_saved_where_the_cpu_is_as_fast_as_the_link() -> None:
    assert model_reduction([ROW], 1e10, 1e10) == pytest.approx(0.5)
    assert model_reduction([ROW], 1e10, 1e30) == pytest.approx(0.0)
    wasteful = {"row_bytes": 64, "lines": 1.0}
    assert model_reduction([wasteful], 1e10, 1e30) == pytest.approx(-1.0), "twice the bytes"


def test_the_rate_at_which_a_share_is_saved_is_found() -> None:
    assert find_gather_rate([ROW], 1e10, 0.5) == pytest.approx(1e10)
    rows = [ROW, {"row_bytes": 400, "lines": 4.0}]
    for link in LINKS.values():
        found = find_gather_rate(rows, link, 0.471)
        assert model_reduction(rows, link, found) == pytest.approx(0.471)


def test_links_have_the_rates_of_their_standard() -> None:
    assert [round(each / 1e9, 2) for each in LINKS.values()] == [15.75, 31.51, 63.02]
    assert round(FASTEST_GATHER / 1e9, 1) == 46.9


def test_tables_have_a_line_for_each_width_and_link() -> None:
    assert len(render_transfer_model().splitlines()) == 2 + len(LINKS)
    columns = {line.count("|") for line in render_transactions().splitlines()}
    assert len(columns) == 1
