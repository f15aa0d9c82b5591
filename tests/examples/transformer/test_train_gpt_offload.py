from __future__ import annotations

import runpy
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "transformer" / "train_gpt_offload.py"


def test_both_trainings_have_the_same_losses(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--steps", "3"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")  # leaves with an error if losses differ
    said = capsys.readouterr().out
    assert "every loss is equal to the last bit" in said
    assert said.count("step ") >= 3
    assert "peak in memory if all were kept" in said
