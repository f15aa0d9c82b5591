"""The picture shows every row that has the figure, and is the same for the same rows."""

from pathlib import Path
from xml.etree import ElementTree

from benchmarks.ledger import append
from benchmarks.rendering.curve import draw_curve, draw_curves, points_of
from benchmarks.rendering.render import PICTURES, find_stale_pictures
from tests.benchmarks.runs import make_row, make_run

PANELS = {"peak_live_bytes": "live", "peak_growth_bytes": "resident"}
ROWS = [
    make_row("batch 2", "plain", 1.0, peak_live_bytes=100 * 2**20, peak_growth_bytes=120 * 2**20),
    make_row("batch 4", "plain", 2.0, peak_live_bytes=200 * 2**20, peak_growth_bytes=220 * 2**20),
    make_row("batch 2", "a < b", 1.5, peak_growth_bytes=50 * 2**20),
]


def lines(picture: str) -> list[str]:
    tree = ElementTree.fromstring(picture)
    names = [each.get("id") or "" for each in tree.iter("{http://www.w3.org/2000/svg}g")]
    return [name.removeprefix("line ") for name in names if name.startswith("line ")]


def test_a_point_for_each_row_that_has_the_figure() -> None:
    assert points_of(ROWS, "peak_live_bytes") == {"plain": [(100.0, 1.0), (200.0, 2.0)]}
    picture = draw_curve(ROWS, PANELS)
    assert lines(picture) == ["plain of 2", "plain of 2", "a < b of 1"]
    assert draw_curve(ROWS, PANELS) == picture
    assert lines(draw_curve([], PANELS)) == []


def test_a_panel_for_each_ending_of_a_case() -> None:
    picture = draw_curves(ROWS, "peak_growth_bytes", {"4": "four", "2": "two"})
    assert lines(picture) == ["plain of 1", "plain of 1", "a < b of 1"]
    assert picture.index("four") < picture.index("two")


def test_a_stale_picture_is_found(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    (tmp_path / "docs").mkdir()
    assert find_stale_pictures(tmp_path, ledger) == {}
    append(make_run("offload_batches", rows=ROWS), ledger)
    [(path, drawn)] = find_stale_pictures(tmp_path, ledger).items()
    assert path.relative_to(tmp_path).as_posix() in PICTURES
    path.write_text(drawn)
    assert find_stale_pictures(tmp_path, ledger) == {}
    path.write_text(drawn.replace("drawn from ", "drawn from 0"))
    assert list(find_stale_pictures(tmp_path, ledger)) == [path]
    path.write_text(drawn)
    append(make_run("offload_batches", rows=ROWS[:1]), ledger)
    assert list(find_stale_pictures(tmp_path, ledger)) == [path]
