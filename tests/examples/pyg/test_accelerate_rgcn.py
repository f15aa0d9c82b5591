from __future__ import annotations

import pytest

from tests.examples.runs import run_example


@pytest.mark.filterwarnings("ignore")  # of other people's libraries
def test_both_trainings_agree(monkeypatch, capsys) -> None:
    pytest.importorskip("torch_geometric")
    words = ("--steps", "4", "--nodes", "300")
    said = run_example(monkeypatch, capsys, "pyg/accelerate_rgcn.py", *words)
    assert "2 graph layers compiled, 0 left as they were" in said
    assert "4 steps, the losses agree" in said
