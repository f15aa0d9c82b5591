"""The progress bar of who waits for compilers: shown where it is wanted."""

from __future__ import annotations

import pytest

from shorthaul.jit.compiling.progress import progress_on_terminal
from shorthaul.settings import settings


@pytest.mark.parametrize(
    ("setting", "wanted", "is_shown"),
    [("on", True, True), ("on", False, False), ("off", True, False), ("auto", True, False)],
)
def test_a_bar_is_shown_where_it_is_wanted(
    capfd: pytest.CaptureFixture[str], setting: str, wanted: bool, is_shown: bool
) -> None:
    with settings.override(progress=setting), progress_on_terminal(wanted) as show:
        for done in range(3):
            show("compiling", done, 2)
    said = capfd.readouterr()
    assert ("compiling" in said.err) == is_shown
    assert said.out == ""
