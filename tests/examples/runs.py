"""Running an example as a user does."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, *words: str
) -> str:
    """What it prints; it leaves with an error if what it promises does not hold."""
    path = EXAMPLES / name
    monkeypatch.setattr(sys, "argv", [str(path), *words])
    runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out
