"""The progress bar of who waits for compilers: shown where it is wanted."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from shorthaul.jit.compiling.progress import announce_compiling, progress_on_terminal
from shorthaul.jit.kernel_cache import CacheEntry
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


class Kept:
    """A cache whose kernels took so long."""

    def __init__(self, *seconds: float) -> None:
        self.kernels = tuple(
            CacheEntry("kernel", "0", Path(), 0, "0", 0.0, compile_seconds=each) for each in seconds
        )

    def entries(self) -> tuple[CacheEntry, ...]:
        return self.kernels


@pytest.mark.parametrize(
    ("seconds", "kernels", "said"),
    [
        ((), 1, ["compiling 1 kernel, once"]),
        ((1.0, 4.0, 9.0), 10, ["compiling 10 kernels, about 20.0 s, once"]),
        ((0.1,), 3, []),
    ],
)
def test_how_long_kernels_take_is_told_by_those_that_are_there(seconds, kernels, said, caplog):
    with settings.override(compilers=2), caplog.at_level(logging.INFO, "shorthaul"):
        announce_compiling(kernels, Kept(*seconds))  # type: ignore[arg-type]
    assert caplog.messages == said
