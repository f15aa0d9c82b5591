from __future__ import annotations

import pytest

from tests.examples.runs import run_example


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of other people's libraries
def test_both_trainings_have_the_same_losses(monkeypatch, capsys) -> None:
    pytest.importorskip("transformers")
    said = run_example(monkeypatch, capsys, "hugging_face/train_with_trainer.py", "--steps", "2")
    assert "2 steps, every loss is equal to the last bit" in said
    assert "gained: at most 1" in said
