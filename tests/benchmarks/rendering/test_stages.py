"""The stages on the page are those of the layer that the page writes."""

from pathlib import Path

from benchmarks.rendering.stages import (
    PICTURE,
    attention,
    draw_stages,
    explain_attention,
    render_stages,
)
from shorthaul.relational.inspection.explain import read_source

PAGE = Path(__file__).parents[3] / "docs" / "relational.md"


def test_the_page_writes_the_layer_that_is_printed() -> None:
    body = read_source(attention.function).partition('writes."""\n')[2]
    page = [line.partition("  #")[0].rstrip() for line in PAGE.read_text().splitlines()]
    assert body in "\n".join(page)


def test_every_part_is_there() -> None:
    text = render_stages()
    assert text.count("```") == 10
    for part in ("value      = linear expand, weight", "over source pair", "backward\n", "MFLOP"):
        assert part in text


def test_edges_have_no_memory_in_the_forward_pass() -> None:
    costs = explain_attention(trains=False).estimate()
    assert costs is not None
    assert costs.peak_bytes < 620_232 * 64 * 4  # one value of 64 numbers per edge would be more


def test_the_picture_is_drawn() -> None:
    assert draw_stages().startswith("<svg ")
    assert Path(PICTURE).name in PAGE.read_text()
