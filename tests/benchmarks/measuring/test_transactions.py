"""Lines and sectors that the gather kernel asks for, from the addresses that it reads in the interpreter."""

from __future__ import annotations

import functools
from typing import Any

import pytest

pytest.importorskip("triton")

from benchmarks.rendering.transactions import read_record
from tests.triton_programs import run_interpreted

LINE_BYTES = 128


@functools.cache
def traced() -> tuple[dict[str, Any], ...]:
    return tuple(run_interpreted("benchmarks.measuring.transactions", 0, 0))


def _of(way: str) -> dict[int, dict[str, Any]]:
    return {row["width"]: row for row in traced() if row["way"] == way}


def test_the_record_is_what_is_traced() -> None:
    assert list(traced()) == read_record()


def test_the_shift_reproduces_the_papers_comparison() -> None:
    """100 values of four bytes, a value a lane: a warp too many in most lines, until lanes are turned."""
    straight, turned = _of("value a lane")[100], _of("value a lane, turned")[100]
    assert (straight["lines"], turned["lines"]) == (6.625, 4.875)


def test_rows_of_whole_lines_cost_their_lines_and_no_more() -> None:
    for width in (128, 800):
        row = _of("ours")[width]
        assert row["lines"] == row["touched_lines"] == row["row_bytes"] / LINE_BYTES
        assert row["sectors"] == row["row_bytes"] / 32


@pytest.mark.parametrize("way", ["ours", "ours, 64 bytes into a page"])
def test_ours_is_near_the_lines_that_rows_lie_in(way: str) -> None:
    for width, row in _of(way).items():
        assert row["touched_lines"] <= row["lines"] <= 1.1 * row["touched_lines"], row
        assert row["lines"] <= _of("value a lane, turned")[width]["lines"] + 1


def test_turned_lanes_never_ask_for_more() -> None:
    for width, row in _of("value a lane, turned").items():
        assert row["lines"] <= _of("value a lane")[width]["lines"]
