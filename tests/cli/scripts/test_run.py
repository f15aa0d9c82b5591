"""`shorthaul run`: which words are ours, and which are the script's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from shorthaul.integrations.run import RunWishes


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would have been run, instead of running it."""
    given: list[Any] = []
    monkeypatch.setattr("shorthaul.integrations.run.run", lambda *what: given.extend(what))
    return given


@pytest.mark.parametrize(
    ("words", "wishes", "left"),
    [
        (["a.py"], RunWishes(), ("a.py",)),
        (["a.py", "--memory", "1", "--help"], RunWishes(), ("a.py", "--memory", "1", "--help")),
        (["-m", "a.b", "--report", "x"], RunWishes(), ("-m", "a.b", "--report", "x")),
        (["--", "a.py", "--", "-m"], RunWishes(), ("a.py", "--", "-m")),
        (["-", "--accelerate"], RunWishes(), ("-", "--accelerate")),
        (
            ["--memory", "8GiB", "-m", "a", "-h"],
            RunWishes(memory_bytes=2**33, offloads=True),
            ("-m", "a", "-h"),
        ),
        (
            ["--memory=1KiB", "--replace-convs", "--accelerate", "a.py"],
            RunWishes(memory_bytes=1024, offloads=True, replaces_convs=True, accelerates=True),
            ("a.py",),
        ),
    ],
)
def test_words_before_the_script_are_ours(shorthaul, started, words, wishes, left) -> None:
    shown = shorthaul("run", *words)
    assert shown.exit_code == 0, shown.output
    assert started == [wishes, left]


def test_paths_hold_wherever_the_script_goes(shorthaul, started, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    shown = shorthaul("run", "--offload", "here", "--report", "out.json", "a.py")
    assert shown.exit_code == 0, shown.output
    assert started[0] == RunWishes(
        directory=str(tmp_path / "here"), offloads=True, report=str(tmp_path / "out.json")
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "Missing argument"),
        (["-m"], "-m needs the name of a module."),
        (["--memory", "much", "a.py"], "expected bytes such as"),
        (["--offload", "/nowhere", "a.py"], "does not exist"),
        (["--report", "/nowhere/out.json", "a.py"], "there is no directory /nowhere."),
        (["--swift", "a.py"], "No such option"),
    ],
)
def test_wrong_words_run_nothing(shorthaul, started, words, problem) -> None:
    shown = shorthaul("run", *words)
    assert shown.exit_code == 2
    assert problem in shown.output
    assert started == []


def test_a_page_without_what_draws_it_is_refused_before_the_script_runs(
    shorthaul, started, monkeypatch, tmp_path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = shorthaul("run", "--report", str(tmp_path / "out.html"), "a.py")
    assert shown.exit_code == 1
    assert "matplotlib" in shown.output
    assert started == []
    assert shorthaul("run", "--report", str(tmp_path / "out.json"), "a.py").exit_code == 0
    assert started
