"""Every bar is a row of the ledger, and the same rows give the same picture."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.ledger import append
from benchmarks.rendering.bars import draw_layer_shares, draw_steps, mean_shares
from benchmarks.rendering.render import PICTURES, find_stale_pictures
from tests.benchmarks.runs import make_row, make_run

ROWS = [
    make_row("conv1 channels_last threads 1", "eager", 1.0, peak_share=0.5),
    make_row("conv1 channels_last threads 1", "a < b", 1.0, peak_share=0.75),
    make_row("conv2 channels_last threads 1", "eager", 1.0, peak_share=0.125),
    make_row("conv2 channels_last threads 1", "no figure", 1.0),
    make_row("conv1 channels_last threads 2", "eager", 1.0, peak_share=0.9),
]


def bars(picture: str) -> list[str]:
    tree = ElementTree.fromstring(picture)
    names = [each.get("id") or "" for each in tree.iter("{http://www.w3.org/2000/svg}g")]
    return [name.removeprefix("bar ") for name in names if name.startswith("bar ")]


def test_a_bar_for_each_row_of_the_cases_that_are_shown() -> None:
    picture = draw_layer_shares(ROWS, case_ends="channels_last threads 1", title="shares")
    assert bars(picture) == ["eager 0.5000", "eager 0.1250", "a < b 0.7500"]
    assert draw_layer_shares(ROWS, case_ends="channels_last threads 1", title="shares") == picture
    assert bars(draw_layer_shares([], case_ends="", title="none")) == []


def test_steps_are_geometric_means() -> None:
    assert mean_shares(ROWS[:1] + ROWS[2:3]) == {"eager": pytest.approx(0.25)}
    assert bars(draw_steps(ROWS[:3], title="steps")) == ["mean 0.2500", "mean 0.7500"]


def test_a_bar_above_the_peak_is_not_cut_off() -> None:
    rows = [make_row("conv6", "exact=False", 1.0, peak_share=1.5)]
    assert "140%" in draw_layer_shares(rows, case_ends="", title="shares")


@pytest.mark.parametrize("name", [each for each in PICTURES if "conv" in each])
def test_the_pictures_of_convolutions_are_drawn_once_the_ledger_has_rows(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "docs").mkdir()
    assert find_stale_pictures(tmp_path, tmp_path / "ledger") == {}
    case = "conv1 channels_last batch 1 threads 1"
    run = make_run(PICTURES[name][0], rows=[make_row(case, "plain", 1.0, peak_share=0.5)])
    append(run, tmp_path / "ledger")
    ((path, text),) = find_stale_pictures(tmp_path, tmp_path / "ledger").items()
    assert path == tmp_path / name
    assert len(bars(text)) == 1
