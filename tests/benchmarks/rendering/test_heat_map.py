"""Every cell and bar is a row of the ledger; failures are marked."""

from xml.etree import ElementTree

from benchmarks.measuring.answer import Answer
from benchmarks.rendering.heat_map import choose_color, draw_heat_map, draw_memory
from benchmarks.rendering.relational_rows import summarize
from tests.benchmarks.runs import make_row


def texts(picture: str, kind: str) -> list[str | None]:
    tree = ElementTree.fromstring(picture)
    return [each.text for each in tree.iter(f"{{http://www.w3.org/2000/svg}}{kind}")]


def make_rows() -> list[dict]:
    answer = Answer(
        rows=[
            make_row("RGCN, aifb, inference", "plain", 8.0),
            make_row("RGCN, aifb, inference", "shorthaul", 1.0),
            make_row("RGAT 1 head, aifb, inference", "shorthaul", 1.0),
        ]
    )
    answer.leave_out("RGCN, aifb, inference", "a < b", "plain", over_seconds=100.0)
    answer.leave_out("RGAT 1 head, aifb, inference", "large", "shorthaul", needs_bytes=2**34)
    return [*answer.rows, *summarize(answer.rows)]


def test_a_cell_for_each_case_with_its_failures() -> None:
    picture = draw_heat_map(make_rows())
    assert "8x*" in texts(picture, "text")
    assert "no peer" in texts(picture, "text")
    assert draw_heat_map(make_rows()) == picture


def test_colors_go_by_the_logarithm() -> None:
    assert choose_color(1.0) == "#ffffff"
    assert choose_color(0.5) == "#f4a0a0"
    assert choose_color(100.0) == choose_color(1000.0) == "#37a35a"
    assert choose_color(10.0) not in ("#ffffff", "#37a35a")


def test_a_bar_for_each_arm_whose_memory_is_known() -> None:
    answer = Answer(rows=[make_row("RGAT, fb, training", "shorthaul", 1.0, growth_bytes=2**29)])
    answer.leave_out("RGAT, fb, training", "PyG", "shorthaul", needs_bytes=2**34)
    answer.leave_out("RGAT, fb, training", "DGL", "shorthaul", failed=1)
    picture = draw_memory(answer.rows)
    shown = [(each or "").strip() for each in texts(picture, "text")]
    assert "512.0 MiB" in shown
    assert "16.0 GiB" in shown
    assert "RGAT: DGL" not in shown
    assert picture.count('id="bar ') == 2
    assert draw_memory([]).startswith("<svg")
