"""`shorthaul report`: what a run wrote as JSON, read again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from shorthaul.integrations.script_report import ScriptReport


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of 100 s, 40 of which the model waited for the disk."""
    moved = {"source": "memory", "target": "disk", "why": "rows", "bytes": 2**30, "times": 3}
    asked = {"offloads": False, "replaces_convs": False, "accelerates": False, "memory_bytes": None}
    report = ScriptReport(
        command=["train.py"],
        asked=asked,
        seconds=100.0,
        peak_resident_bytes=2**31,
        written_bytes=2**30,
        read_bytes=0,
        disk_trial_bytes=0,
        backward_passes=7,
        models=[],
        memory=None,
        offload=None,
        meter={"moved": [moved], "stall_seconds": {"disk": 40.0}},
        resident=[(0.0, 2**30), (1.0, 2**31)],
        step_seconds=[1.0, 2.0],
        held=None,
        plan=None,
    )
    report.write(tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["seconds"] == asdict(report)["seconds"]
    return tmp_path / "run.json"


def test_a_run_is_shown_with_what_to_try_next(shorthaul, run: Path) -> None:
    shown = shorthaul("report", str(run))
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("shorthaul run: no model was trained")
    assert "peak resident memory  2.0 GiB" in shown.stdout
    assert "  next: " in shown.stdout


def test_a_run_becomes_the_page_that_it_would_have_written(shorthaul, run: Path) -> None:
    pytest.importorskip("matplotlib")
    page = run.with_name("page.of-any-name")
    shown = shorthaul("report", str(run), "--html", str(page))
    assert shown.exit_code == 0, shown.output
    assert str(page) in shown.stdout
    values = json.loads(run.read_text())
    ScriptReport(**values).write(run.with_name("run.html"))
    assert page.read_text() == run.with_name("run.html").read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [("{", "is no JSON"), ("[]", "it lacks asked, backward_passes"), ('{"x": 1}', "it lacks")],
)
def test_another_file_is_named(shorthaul, tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "run.json").write_text(text)
    shown = shorthaul("report", str(tmp_path / "run.json"))
    assert shown.exit_code == 1
    assert told in shown.stderr
    assert "shorthaul run --report run.json script.py" in shown.stderr


def test_a_page_needs_a_directory(shorthaul, run: Path) -> None:
    shown = shorthaul("report", str(run), "--html", str(run.parent / "none" / "x.html"))
    assert shown.exit_code == 2
    assert "there is no directory" in shown.stderr
