"""The pages in a real browser: no errors, nothing fetched, sorting works, both themes, wide and narrow.

Set SHORTHAUL_SCREENSHOTS to a folder to keep the pictures.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shorthaul.cli.acts.page import format_page as format_demo
from shorthaul.cli.acts.stage import Act, Played, Run
from shorthaul.integrations.script_page import format_page as format_script

pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="the extra `browser` is not installed"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path")

REPORT: dict[str, Any] = {
    "command": ["/home/user/train.py", "--epochs", "3"],
    "asked": {"replaces_convs": False, "accelerates": True},
    "seconds": 10.0,
    "models": [
        {
            "name": "GPT",
            "is_trained": True,
            "convolutions": 3,
            "graph_layers": 0,
            "changed": {f"blocks.{i}.conv": "convolution, window" for i in (10, 2, 1)},
            "left": {"<head>": "was not called"},
        }
    ],
    "offload": {},
    "meter": {
        "moved": [
            {
                "source": "memory",
                "target": "disk",
                "why": "activations",
                "bytes": 9 * 2**20,
                "times": 9,
            },
            {
                "source": "disk",
                "target": "memory",
                "why": "activations",
                "bytes": 2**30,
                "times": 10,
            },
            {"source": "disk", "target": "memory", "why": "rows", "bytes": 2**21, "times": 2},
        ],
        "stall_seconds": {"disk": 4.0},
    },
    "resident": [(0.1 * i, 2**28 + 2**24 * (i % 9)) for i in range(50)],
    "step_seconds": [1.0, 1.2, 1.1],
    "held": {
        "seconds": [0.0, 0.5, 1.0, 1.5],
        "modules": {f"blocks.{i}": [0, 2**24, 2**25, 2**20] for i in range(6)},
    },
}
TABLE = "Journeys"


def make_demo() -> str:
    act = Act("offload", "module", "A GPT trained both ways", ("plain", "shorthaul"), 0.0)
    runs = tuple(
        Run(
            role,
            "kept",
            (2.0, 1.0),
            0.5,
            (seconds,),
            2**30 // parts,
            resident=((0.0, 0), (1.0, 2**30)),
        )
        for role, seconds, parts in (("plain", 2.0, 1), ("shorthaul", 2.2, 3))
    )
    return format_demo([Played(act, runs, 5.0)])


PAGES = {
    "run": lambda: format_script(REPORT, "shorthaul run: GPT: offloaded\n  wall time   10 s"),
    "demo": make_demo,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_renders(browser: Any, tmp_path: Path, name: str, theme: str, width: int) -> None:
    path = tmp_path / f"{name}.html"
    path.write_text(PAGES[name]())
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900})
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda told: wrong.append(told.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: wrong.append(asked.url) if asked.url[:5] == "http:" else None)
    page.goto(path.as_uri())
    assert wrong == []
    # Wide things scroll by themselves; the page does not.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    charts = page.locator("svg[role=img]")
    assert charts.count() >= 2
    assert all(charts.nth(i).get_attribute("aria-label") for i in range(charts.count()))
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids))
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert _contrast(ink, paper) > 7
    assert (_luminance(paper) > 0.5) == (theme == "light")
    quiet = page.evaluate(
        "getComputedStyle(document.querySelector('.quiet') ?? document.body).color"
    )
    assert _contrast(quiet, paper) > 4.5
    text = page.evaluate("getComputedStyle(document.querySelector('svg text')).fill")
    assert _contrast(text, paper) > 7
    if folder := os.environ.get("SHORTHAUL_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}-{theme}-{width}.png", full_page=True)
    context.close()


def test_a_click_on_a_heading_sorts_by_value(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    path.write_text(PAGES["run"]())
    page = browser.new_page()
    page.goto(path.as_uri())
    table = page.get_by_role("region", name=TABLE)

    def column(at: int) -> list[str]:
        return table.locator(f"tbody tr td:nth-child({at})").all_inner_texts()

    assert column(4) == ["9.0 MiB", "1.0 GiB", "2.0 MiB"]
    heading = table.get_by_role("button", name="bytes")
    heading.click()
    assert column(4) == ["2.0 MiB", "9.0 MiB", "1.0 GiB"]  # by number, not by letter
    assert heading.locator("..").get_attribute("aria-sort") == "ascending"
    heading.click()
    assert column(4) == ["1.0 GiB", "9.0 MiB", "2.0 MiB"]
    table.get_by_role("button", name="why").press("Enter")
    assert column(3) == ["activations", "activations", "rows"]
    assert heading.locator("..").get_attribute("aria-sort") is None
    page.close()


def _luminance(color: str) -> float:
    channels = [int(each) / 255 for each in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)
