"""The README can be read in a few minutes, and shows every part; `tests/examples` runs its programs."""

from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
MOST_LINES = 130


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= MOST_LINES


def test_the_readme_shows_every_part() -> None:
    shown = README.read_text()
    for part in (
        "sh.offload_activations",
        "sh.relational.accelerate",
        "sh.open",
        "sh.replace_convs",
        "sh.meter",
        "ShorthaulCallback",
        "shorthaul run",
    ):
        assert part in shown
