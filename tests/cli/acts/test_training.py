from __future__ import annotations

import torch
from torch import nn

from shorthaul.cli.acts.training import HEADINGS, compare_trainings, train
from shorthaul.meter import record_move


def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss = model(batch).square().mean()
    loss.backward()
    record_move("memory", "disk", 100, "activations")
    return loss.detach()


def run(name: str, seed: int):
    torch.manual_seed(seed)
    said: list[str] = []
    batches = [torch.ones(4, 3) * i for i in range(1, 4)]
    return train(name, nn.Linear(3, 2), batches, step, said.append), said


def test_a_training_tells_its_losses_time_and_bytes():
    trained, said = run("plain", 0)
    assert len(trained.losses) == 3
    assert trained.measured.written_bytes == 300
    assert len(said) == 3
    assert said[0].startswith("plain: step 1, loss ")
    assert len(trained.row()) == len(HEADINGS)
    assert trained.figures()["written_bytes"] == 300


def test_two_trainings_from_one_seed_are_the_same_and_from_two_are_not():
    (first, _), (again, _), (other, _) = run("a", 0), run("b", 0), run("c", 1)
    assert first.losses == again.losses != other.losses
    outcome = compare_trainings(first, other, holds=first.losses == other.losses)
    assert not outcome.holds
    assert [row[0] for row in outcome.rows] == ["a", "c"]
    assert set(outcome.figures) == {"plain", "shorthaul"}
