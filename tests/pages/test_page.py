from __future__ import annotations

import sys

import pytest

from shorthaul.errors import MissingExtraError
from shorthaul.pages.charts import draw_areas, draw_bars, draw_lines
from shorthaul.pages.page import Cell, Page


def test_what_users_wrote_is_text_and_no_markup():
    page = Page("<b>")
    page.head("<i>")
    page.say("a & b")
    page.show_code("<script>")
    page.show_table('"quoted"', ("<u>", "n"), [[Cell("<s>"), Cell("1 KiB", 1024)]])
    text = page.finish()
    for wrong in ("<b>", "<i>", "<u>", "<s>", "a & b"):
        assert wrong not in text
    assert text.count("<script>") == 1
    assert 'aria-label="&quot;quoted&quot;"' in text
    assert '<td class="number" data-value="1024">1 KiB</td>' in text
    assert "<td>&lt;s&gt;</td>" in text


def test_nothing_is_fetched_from_elsewhere():
    pytest.importorskip("matplotlib")
    page = Page("page")
    page.show_chart(draw_bars({"one": 1.0, "two": 2.0}, unit="MiB", title="Two bars"))
    text = page.finish()
    assert 'src="' not in text
    assert 'href="http' not in text
    assert "@import" not in text


def test_charts_have_words_and_take_the_pages_color():
    pytest.importorskip("matplotlib")
    areas = draw_areas(
        [0.0, 1.0], {"a": [1.0, 2.0], "b": [0.0, 3.0]}, unit="MiB", title='By "a" & b'
    )
    lines = draw_lines({"a": ([0.0, 1.0], [1.0, 2.0])}, unit="MiB", title="One line")
    assert 'aria-label="By &quot;a&quot; &amp; b"' in areas
    for svg in (areas, lines):
        assert "currentColor" in svg
        assert "#010203" not in svg
        assert "<text" in svg


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"shorthaul\[report\]"):
        draw_bars({"one": 1.0}, unit="MiB", title="One")
