from __future__ import annotations

import runpy
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_layer" / "write_your_own_layer.py"


def test_both_trainings_have_the_same_losses(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--modules", "30", "--steps", "4"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")  # leaves with an error if losses differ
    assert "the losses agree" in capsys.readouterr().out
