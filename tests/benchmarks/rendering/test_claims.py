"""Verdicts follow from the ledger, and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import ledger
from benchmarks.rendering.claims import CLAIMS, IN_BRIEF, TWO_LINES, find_claim, main, render_claims
from tests.benchmarks.runs import make_run


def test_every_claim_of_the_abstracts_has_a_place() -> None:
    quotes = " ".join(each.quote for each in CLAIMS)
    numbers = (
        "47.1%",
        "1.6x",
        "12.4% to 17.5%",
        "at most two lines",
        "9.9x",
        "43.7x",
        "out-of-memory",
    )
    numbers += (
        "3.8x",
        "51 lines",
        "8K lines",
        "47%",
        "recompute-offload-keep",
        "23.1%",
        "3.5x",
        "32.8%",
    )
    numbers += ("1.8x", "155x", "41.6%", "3.6x", "5.3x")
    assert [each for each in numbers if each not in quotes] == []


def test_names_are_distinct_and_the_readme_shows_eight() -> None:
    names = [each.name for each in CLAIMS]
    assert len(set(names)) == len(names)
    assert len(IN_BRIEF) == 8
    assert set(IN_BRIEF) <= set(names)


def test_every_question_has_a_benchmark() -> None:
    folder = Path(__file__).parents[3] / "benchmarks"
    found = {path.stem.removeprefix("bench_") for path in folder.rglob("bench_*.py")}
    assert {each.question for each in CLAIMS if each.question} <= found


def test_what_can_be_measured_was_measured() -> None:
    for each in CLAIMS:
        assert (each.read() is None) == (each.measure is None), each.name


def test_a_verdict_changes_with_the_ledger(tmp_path: Path) -> None:
    """A run in which ours is slower turns the verdict."""
    claim = find_claim("H1")
    assert claim is not None
    for seconds, verdict in ((0.01, "reached"), (0.5, "not reached")):
        run = make_run()
        template = json.dumps(run["rows"][0])
        rows = []
        for arm, median in (("PyG", 1.0), ("shorthaul", seconds)):
            row = json.loads(template) | {"case": "RGCN, aifb, inference", "arm": arm}
            row["wall_seconds"] = {"low": median, "median": median, "high": median}
            rows.append(row | {"rounds": 3, "baseline": "PyG"})
        ledger.append(run | {"question": claim.question, "rows": rows}, tmp_path)
        assert claim.judge(claim.read(tmp_path)) == verdict


def test_a_cell_of_ours_that_fails_is_counted(tmp_path: Path) -> None:
    claim = find_claim("H3")
    assert claim is not None
    run = make_run()
    row = run["rows"][0] | {"case": "RGCN, aifb, inference"}
    rows = [
        row | {"arm": "plain", "figures": {}},
        row | {"arm": "PyG", "rounds": 0, "figures": {"needs_bytes": 2**40}},
        row | {"arm": "shorthaul", "rounds": 3, "figures": {}},
    ]
    for failures, verdict in ((0, "reached"), (1, "not reached")):
        rows += [row | {"arm": "shorthaul, bfloat16", "rounds": 0, "figures": {}}] * failures
        ledger.append(run | {"question": claim.question, "rows": rows}, tmp_path)
        figure = claim.read(tmp_path)
        assert figure is not None
        assert figure.words.startswith(f"{failures} of our {1 + failures} cells failed; 1 peers'")
        assert claim.judge(figure) == verdict


def test_an_empty_ledger_says_that_nothing_was_measured(tmp_path: Path) -> None:
    assert "not measured yet" in render_claims(tmp_path)


def test_the_two_lines_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("features.npy", np.arange(20, dtype=np.float32).reshape(10, 2))
    rows = []
    for script in TWO_LINES:
        names = {"ids": np.array([3, 1])}
        exec(script, names)
        rows.append(np.asarray(names["rows"]).tolist())
    assert rows[0] == rows[1] == [[6.0, 7.0], [2.0, 3.0]]


def test_one_claim_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["p3"]) == 0
    assert "not testable here" in capsys.readouterr().out


def test_a_claim_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["Z9"])
    assert "there is no claim 'Z9'" in capsys.readouterr().err
