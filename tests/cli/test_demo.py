"""`shorthaul demo`: the same work done twice, in processes of their own, and checked."""

import io
import json
import sys
from pathlib import Path

import click
import pytest
from rich.console import Console

from shorthaul.cli import demo
from shorthaul.cli.acts.stage import Act, Played, Run
from shorthaul.cli.demo import ACTS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    acts = tuple(
        Act(name, "tests.cli.acts.tiny_act", "A moment", ("plain", *roles), 0.0)
        for name, roles in (("tiny", ("shorthaul",)), ("broken", ("fails",)))
    )
    monkeypatch.setattr(demo, "ACTS", acts)
    # Names are checked against those of the real acts, when the verb is defined.
    choice = next(each for each in demo.demo.params if each.name == "names")
    monkeypatch.setattr(choice, "type", click.Choice([each.name for each in acts]))


@pytest.mark.usefixtures("tiny")
def test_what_does_not_hold_fails_the_demo_and_not_the_other_acts(shorthaul) -> None:
    shown = shorthaul("demo", "--quick")
    assert shown.exit_code == 1
    assert shown.stderr == "Did not hold: broken.\n"
    assert "1/2 A moment\n    done, " in shown.stdout
    assert "2/2 A moment\n    did not hold, " in shown.stdout
    assert "broken: It did not finish: fails: MemoryError: no room." in shown.stdout
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["tiny", "same"] in [row[:2] for row in rows]
    assert ["broken", "failed"] in rows


def test_the_closing_table_fits_a_terminal_of_80_columns() -> None:
    act = Act("distributed", "module", "An act", ("plain", "shorthaul"), 0.1)
    runs = tuple(
        Run(role, "", (1.0,), 1234.0, (1234.0,), 2**39, read_bytes=2**39, received_bytes=1)
        for role in act.roles
    )
    for width in (80, demo.WIDE):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(demo.render([Played(act, runs, 1.0)], is_wide=width >= demo.WIDE))
        text = console.export_text()
        assert max(map(len, text.splitlines())) <= width
        assert "1234 → 1234 s" in text
        assert "512 → 512 GiB" in text
        assert "512.0 GiB" in text
        assert "…" not in text


@pytest.mark.usefixtures("tiny")
def test_a_report_is_a_page(shorthaul, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shown = shorthaul("demo", "--act", "tiny", "--json", "--report", str(tmp_path / "x.html"))
    assert json.loads(shown.stdout)["holds"] is True
    text = (tmp_path / "x.html").read_text()
    assert "<h2>A moment</h2>" in text
    assert "tiny: resident memory over time" in text


def test_without_matplotlib_a_report_is_refused_before_anything_is_played(
    shorthaul, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = shorthaul("demo", "--report", str(tmp_path / "x.html"))
    assert shown.exit_code == 1
    assert "pip install 'shorthaul[report]'" in shown.stderr
    assert shown.stdout == ""


def test_a_report_needs_a_directory(shorthaul, tmp_path: Path) -> None:
    shown = shorthaul("demo", "--report", str(tmp_path / "none" / "x.html"))
    assert shown.exit_code == 2
    assert "there is no directory" in shown.stderr


def test_an_act_that_there_is_not(shorthaul) -> None:
    shown = shorthaul("demo", "--act", "opera")
    assert shown.exit_code == 2
    assert "opera" in shown.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in ACTS])
def test_every_act_holds(shorthaul, name: str) -> None:
    shown = shorthaul("demo", "--quick", "--json", "--act", name)
    assert shown.exit_code == 0, shown.output
    (act,) = json.loads(shown.stdout)["acts"]
    runs = {each["role"]: each for each in act["runs"]}
    assert all(each["peak_bytes"] > 100 * 2**20 for each in runs.values())
    if name == "offload":
        assert runs["shorthaul"]["peak_bytes"] < runs["plain"]["peak_bytes"] / 2
        assert runs["shorthaul"]["losses"] == runs["plain"]["losses"]
    if name == "tensors":
        assert "MemoryError" in runs["plain, limited"]["failure"]
