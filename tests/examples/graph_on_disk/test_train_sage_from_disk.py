from __future__ import annotations

import runpy
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "graph_on_disk" / "train_sage_from_disk.py"


def test_both_trainings_have_the_same_losses(monkeypatch, capsys):
    arguments = ["--modules", "40", "--epochs", "2"]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    runpy.run_path(str(EXAMPLE), run_name="__main__")  # leaves with an error if losses differ
    said = capsys.readouterr().out
    assert "every loss is equal to the last bit" in said
    assert "MiB were read" in said
