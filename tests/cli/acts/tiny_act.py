"""An act of a moment, for tests of how acts are played."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from shorthaul.cli.acts.cue import Cue
from shorthaul.cli.acts.stage import Run
from shorthaul.cli.acts.training import train


def play(role: str, *, is_quick: bool, cue: Cue) -> Run:
    if role == "dies":
        os._exit(3)
    if role == "dies between turns":
        cue.wait()
        os._exit(4)
    if role == "fails":
        raise MemoryError("no room\nat all")
    print("words of a library")
    print("7")  # which happens to be JSON
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    turns = [[torch.ones(4, 3) * i] * 2 for i in range(1, 4)]
    ballast = torch.ones(64 * 2**20 if role == "large" else 1, dtype=torch.uint8)
    extra = {"quick": is_quick, "b": len(ballast)}
    run = train(role, "tiny", model, turns, _step, cue)
    return replace(run, extra=run.extra | extra)


def _step(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss = model(batch).square().mean()
    loss.backward()
    return loss.detach()
