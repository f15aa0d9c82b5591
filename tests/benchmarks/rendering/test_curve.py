"""The picture shows every row that has the figure, and is the same for the same rows."""

from pathlib import Path
from xml.etree import ElementTree

from benchmarks.ledger import append
from benchmarks.rendering.curve import choose_ticks, draw_curve, draw_curves
from benchmarks.rendering.render import PICTURES, find_stale_pictures
from tests.benchmarks.runs import make_row, make_run

PANELS = {"peak_live_bytes": "live", "peak_growth_bytes": "resident"}
ROWS = [
    make_row("batch 2", "plain", 1.0, peak_live_bytes=100 * 2**20, peak_growth_bytes=120 * 2**20),
    make_row("batch 4", "plain", 2.0, peak_live_bytes=200 * 2**20, peak_growth_bytes=220 * 2**20),
    make_row("batch 2", "a < b", 1.5, peak_growth_bytes=50 * 2**20),
]


def test_a_point_for_each_row_that_has_the_figure() -> None:
    picture = draw_curve(ROWS, PANELS)
    tree = ElementTree.fromstring(picture)
    titles = [each.text for each in tree.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == [
        "plain, batch 2: 100 MiB, 1.00 s",
        "plain, batch 4: 200 MiB, 2.00 s",
        "plain, batch 2: 120 MiB, 1.00 s",
        "plain, batch 4: 220 MiB, 2.00 s",
        "a < b, batch 2: 50 MiB, 1.50 s",
    ]
    assert draw_curve(ROWS, PANELS) == picture
    assert draw_curve([], PANELS).endswith("</svg>\n")


def test_a_panel_for_each_ending_of_a_case() -> None:
    picture = draw_curves(ROWS, "peak_growth_bytes", {"4": "four", "2": "two"})
    tree = ElementTree.fromstring(picture)
    drawn = [each.text for each in tree.iter("{http://www.w3.org/2000/svg}title")]
    assert drawn == [
        "plain, batch 4: 220 MiB, 2.00 s",
        "plain, batch 2: 120 MiB, 1.00 s",
        "a < b, batch 2: 50 MiB, 1.50 s",
    ]
    assert picture.index("four") < picture.index("two")


def test_ticks_are_round_and_reach_the_largest() -> None:
    assert choose_ticks(2.0) == [0, 0.5, 1.0, 1.5, 2.0]
    assert choose_ticks(0.0) == [0, 1]
    for largest in (0.013, 1.7, 9.99, 73.0, 4096.0):
        ticks = choose_ticks(largest)
        assert ticks[-2] < largest <= ticks[-1]
        assert 3 <= len(ticks) <= 9


def test_a_stale_picture_is_found(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    (tmp_path / "docs").mkdir()
    assert find_stale_pictures(tmp_path, ledger) == {}
    append(make_run("offload_batches", rows=ROWS), ledger)
    [(path, drawn)] = find_stale_pictures(tmp_path, ledger).items()
    assert path.relative_to(tmp_path).as_posix() in PICTURES
    path.write_text(drawn)
    assert find_stale_pictures(tmp_path, ledger) == {}
    path.write_text(drawn + " ")
    assert list(find_stale_pictures(tmp_path, ledger)) == [path]
