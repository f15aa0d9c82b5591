"""The ledger only grows, and holds only what has its form."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ledger import (
    LedgerError,
    append,
    choose_latest,
    list_questions,
    read_runs,
    verify_run,
)
from tests.benchmarks.runs import make_row, make_run


def test_runs_come_back_in_order(tmp_path: Path) -> None:
    runs = [make_run(date=f"2025-01-0{day}") for day in (1, 2, 3)]
    for run in runs:
        append(run, tmp_path)
    append(make_run("writes"), tmp_path)
    assert read_runs("rows", tmp_path) == runs
    assert list_questions(tmp_path) == ["rows", "writes"]


def test_nothing_written_before_is_touched(tmp_path: Path) -> None:
    path = append(make_run(), tmp_path)
    for _ in range(3):
        before = path.read_bytes()
        append(make_run(), tmp_path)
        assert path.read_bytes().startswith(before)
        assert len(path.read_bytes()) > len(before)


def test_runs_added_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: append(make_run(), tmp_path), range(40)))
    assert len(read_runs("rows", tmp_path)) == 40


def test_a_line_cut_short_is_not_continued(tmp_path: Path) -> None:
    path = append(make_run(), tmp_path)
    path.write_bytes(path.read_bytes()[:-10])
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="ends in the middle of a line"):
        append(make_run(), tmp_path)
    assert path.read_bytes() == before
    with pytest.raises(LedgerError, match=r"rows.jsonl:1 is not JSON"):
        read_runs("rows", tmp_path)


def test_a_run_in_the_wrong_file_is_found(tmp_path: Path) -> None:
    append(make_run("writes"), tmp_path).rename(tmp_path / "rows.jsonl")
    with pytest.raises(LedgerError, match=r"rows\.jsonl:1 answers `writes`, expected `rows`"):
        read_runs("rows", tmp_path)


def test_the_newest_run_of_each_machine_counts() -> None:
    machine = make_run()["machine"]
    runs = [
        make_run(date="1"),
        make_run(date="2", machine=machine | {"cpu": "Abacus 10"}),
        make_run(date="3", machine=machine | {"torch": "2.14.0"}),
    ]
    assert [run["date"] for run in choose_latest(runs)] == ["3", "2"]


def _with_row(**changes: Any) -> dict[str, Any]:
    return make_run(rows=[make_row("a", "plain", 1.0) | changes])


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ([], "here: expected the fields schema, question, asks, date, commit, is_changed, "),
        ({"schema": 1}, "; got schema"),
        (make_run(schema=2), "here: expected schema 1, got 2"),
        (make_run(date=7), "here: `date` must be str, got 7"),
        (make_run("../secret"), "here: the question must be a plain name, got '../secret'"),
        (
            make_run(machine={}),
            "here: the machine lacks allocator, cores, cpu, memory_bytes, torch",
        ),
        (make_run(rows=[]), "here: a run without rows answers nothing"),
        (make_run(rows=[{}]), "here, row 0: expected the fields case, arm,"),
        (
            make_run(rows=[make_row("a", "plain", 1.0)] * 2),
            "here: an arm is there twice in one case",
        ),
        (
            make_run(rows=[make_row("a", "ours", 1.0)]),
            "here: case `a` lacks its baseline `plain`",
        ),
        (
            _with_row(wall_seconds={"low": 2.0, "median": 1.0, "high": 3.0}),
            "here, row 0: wall_seconds is not ordered low, median, high",
        ),
        (
            _with_row(speedup={"low": math.nan, "median": 1.0, "high": 3.0}),
            "here, row 0: speedup is not ordered low, median, high",
        ),
        (
            _with_row(cpu_seconds={"median": 1.0}),
            "here, row 0, cpu_seconds: expected the fields low, median, high; got median",
        ),
        (
            _with_row(figures={"read_bytes": "many"}),
            "here, row 0: figure `read_bytes` must be a number, got 'many'",
        ),
    ],
)
def test_what_does_not_have_the_form_is_refused(run: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(LedgerError) as caught:
        verify_run(run, "here")
    assert message in str(caught.value)
    if isinstance(run, dict):
        with pytest.raises(LedgerError):
            append(run, tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_a_good_run_has_the_form() -> None:
    verify_run(json.loads(json.dumps(make_run())), "here")
