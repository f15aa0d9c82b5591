"""`shorthaul demo`: every act is shown and checked, and the report says what was on the screen."""

import json
from pathlib import Path

import pytest

from shorthaul.cli import demo
from shorthaul.cli.acts.stage import Act, Outcome, Stage
from shorthaul.cli.demo import ACTS, QUICK_STORED_BYTES, show_kernel, show_machine, show_storage
from shorthaul.settings import settings

QUICK = Stage(is_quick=True)


def test_the_whole_demo(shorthaul, tmp_path: Path) -> None:
    directory = tmp_path / "report"
    shown = shorthaul("demo", "--quick", "--report", str(directory))
    assert shown.exit_code == 0, shown.output
    document = json.loads((directory / "demo.json").read_text())
    assert document["holds"] is True
    assert [each["name"] for each in document["acts"]] == [each.name for each in ACTS]
    for number, act in enumerate(ACTS, 1):
        assert f"{number}. {act.title}\n" in shown.output
    assert "bytes moved and kept" in shown.output
    for name in ("demo.md", "demo.json"):
        assert f"written: {directory / name}\n" in shown.output
    by_name = {each["name"]: each["figures"] for each in document["acts"]}
    assert by_name["storage"]["bytes"] == QUICK_STORED_BYTES
    assert by_name["kernel"]["is_equal"] is True
    moved = {
        (each["source"], each["target"], each["why"]): each["bytes"]
        for each in document["meter"]["moved"]
    }
    written = {why: count for (source, _, why), count in moved.items() if source == "memory"}
    assert any(
        count >= QUICK_STORED_BYTES and moved.get(("disk", "memory", why)) == count
        for why, count in written.items()
    )
    assert moved["disk", "memory", "feature rows"] > 0
    assert ("memory", "disk", "feature rows") not in moved


def test_an_act_that_does_not_hold_fails_the_demo_but_not_the_others(
    shorthaul, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(stage: Stage) -> Outcome:
        raise ValueError("the curtain is stuck")

    def work(stage: Stage) -> Outcome:
        return Outcome(("what",), (("[plain]",),), {}, holds=True)

    monkeypatch.setattr(demo, "ACTS", (Act("first", "One", fail), Act("second", "Two", work)))
    shown = shorthaul("demo", "--report", str(tmp_path))
    assert shown.exit_code == 1
    assert shown.stderr == "Did not hold: first.\n"
    assert "ValueError: the curtain is stuck" in shown.stdout
    assert "[plain]" in shown.stdout
    assert json.loads((tmp_path / "demo.json").read_text())["holds"] is False


def test_the_machine_is_shown_in_short() -> None:
    outcome = show_machine(QUICK)
    names = [name for _, name, _ in outcome.rows]
    assert outcome.holds
    assert {"compiler", "generated kernels", "storage engine"} <= set(names)
    assert "shorthaul[dev]" not in names
    assert len(outcome.figures["findings"]) >= len(names)


def test_the_kernel_is_shown_with_its_source() -> None:
    outcome = show_kernel(QUICK)
    rows = dict(outcome.rows)
    assert outcome.holds
    assert "scaled_sum" in Path(rows["source"]).read_text()
    assert rows["result"] == "equal to PyTorch's, 1,000,000 numbers"


def test_without_kernels_the_act_says_so() -> None:
    with settings.override(kernels="torch"):
        outcome = show_kernel(QUICK)
    assert outcome.holds
    assert outcome.figures == {"is_equal": None}
    assert "plain PyTorch is used here" in outcome.rows[0][1]


@pytest.mark.parametrize("engine", ["thread", "memory"])
def test_storage_is_shown_with_its_engine(engine: str) -> None:
    with settings.override(engine=engine):
        outcome = show_storage(QUICK)
    rows = dict(outcome.rows)
    assert outcome.holds
    assert rows["engine"].startswith(f"{engine}, ")
    assert rows["written"].startswith("8.0 MiB at ")
    assert rows["bytes"] == "equal"


def test_a_report_that_cannot_be_written_is_an_error(shorthaul, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shown = shorthaul("demo", "--quick", "--report", str(tmp_path / "file"))
    assert shown.exit_code == 2
    assert "is a file" in shown.stderr
