"""A line of JSON every so many steps, whole at any time."""

from __future__ import annotations

import json

import pytest
import torch

from shorthaul.errors import PlanError
from shorthaul.integrations.offloaded_training import OffloadedTraining


def run_steps(training: OffloadedTraining, count: int) -> None:
    model = torch.nn.Linear(64, 64)
    training.begin_training(model, [])
    for _ in range(count):
        training.run_step(lambda: model(torch.randn(64, 64)).square().sum().backward())
    training.end_training()


def test_lines_are_added_every_so_many_steps(tmp_path) -> None:
    path = tmp_path / "steps.jsonl"
    knobs = {"minimum_bytes": 1024, "engine": "thread"}
    training = OffloadedTraining(None, tmp_path, report=path, report_every=3, **knobs)
    run_steps(training, 7)
    run_steps(training, 3)  # resumed: what was told stays
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["step"] for each in lines] == [3, 6, 3]
    assert lines[0]["shorthaul_written_bytes"] < lines[1]["shorthaul_written_bytes"]
    assert all(each["resident_bytes"] > 2**20 for each in lines)
    assert path.read_bytes().endswith(b"\n")


def test_without_a_file_nothing_is_written(tmp_path) -> None:
    run_steps(OffloadedTraining(None, tmp_path, engine="thread"), 100)
    assert not list(tmp_path.glob("*.json*"))


def test_what_cannot_be_meant_is_refused(tmp_path) -> None:
    with pytest.raises(PlanError, match="needs `report`"):
        OffloadedTraining(report_every=5)
    with pytest.raises(PlanError, match="at least 1, got 0"):
        OffloadedTraining(report=tmp_path / "x", report_every=0)
