"""The same model trained in one way: first steps apart, as compiling, tuning and planning are in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from shorthaul.cli.acts.cue import Cue
from shorthaul.cli.acts.stage import Run
from shorthaul.meter import meter

Step = Callable[[torch.nn.Module, Any], torch.Tensor]


def train(
    role: str,
    what: str,
    model: torch.nn.Module,
    turns: Iterable[Iterable[Any]],
    step: Step,
    cue: Cue,
    *,
    warm_ups: int = 1,
    learning_rate: float = 1e-3,
) -> Run:
    """Train `model`, the batches of a turn at a time.

    `step` runs forward and backward on a batch and returns the loss. The first `warm_ups` turns are
    timed as one; of each later one the time of a step is taken.
    """
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate)
    losses: list[float] = []
    first_seconds, step_seconds = 0.0, []
    with meter() as measured:
        for number, batches in enumerate(turns):
            if number >= warm_ups:
                cue.wait()
            steps_before, began = len(losses), time.perf_counter()
            for batch in batches:
                optimizer.zero_grad()
                losses.append(step(model, batch).item())
                optimizer.step()
                cue.say(f"step {len(losses)}, loss {losses[-1]:.4f}")
            seconds = time.perf_counter() - began
            if number < warm_ups:
                first_seconds += seconds
            else:
                step_seconds.append(seconds / (len(losses) - steps_before))
    return Run(
        role,
        what,
        tuple(losses),
        first_seconds=first_seconds,
        step_seconds=tuple(step_seconds),
        written_bytes=measured.written_bytes,
        read_bytes=measured.read_bytes,
        extra={"meter": measured.to_dict()},
    )
