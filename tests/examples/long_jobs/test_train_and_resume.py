from __future__ import annotations

import json

import pytest
import torch

from examples.long_jobs.train_and_resume import train
from tests.examples.runs import run_example


@pytest.mark.slow
def test_it_stops_and_goes_on(monkeypatch, capsys) -> None:
    said = run_example(monkeypatch, capsys, "long_jobs/train_and_resume.py")
    assert "stopped after step 10, saved" in said
    assert "goes on at step 11" in said
    assert "gained: the job was stopped and went on; 4 reports" in said


def test_stopping_changes_no_loss_and_counts_of_wear_go_on(tmp_path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    train(whole, 10)
    first = train(parts, 10, stop_after=3)
    second = train(parts, 10)
    losses = [
        [json.loads(line)["loss"] for line in (folder / "steps.jsonl").read_text().splitlines()]
        for folder in (whole, parts)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2
    assert second.drive_written_bytes > first.drive_written_bytes > 0
    assert not torch._C._autograd._top_saved_tensors_default_hooks(True)
