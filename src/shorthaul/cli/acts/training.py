"""The same model trained in one way: first steps apart, as compiling, tuning and planning are in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import torch

from shorthaul.cli.acts.stage import Run
from shorthaul.meter import meter

Step = Callable[[torch.nn.Module, Any], torch.Tensor]


def train(
    role: str,
    what: str,
    model: torch.nn.Module,
    batches: Iterable[Any],
    step: Step,
    say: Callable[[str], None],
    *,
    warm_ups: int = 1,
    learning_rate: float = 1e-3,
    extra: dict[str, Any] | None = None,
) -> Run:
    """Train `model`; `step` runs forward and backward on a batch and returns the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate)
    losses: list[float] = []

    def run(some: Iterable[Any]) -> float:
        began = time.perf_counter()
        for batch in some:
            optimizer.zero_grad()
            losses.append(step(model, batch).item())
            optimizer.step()
            say(f"step {len(losses)}, loss {losses[-1]:.4f}")
        return time.perf_counter() - began

    left = iter(batches)
    with meter() as measured:
        first_seconds = run(islice(left, warm_ups))
        seconds = run(left)
    return Run(
        role,
        what,
        tuple(losses),
        first_seconds=first_seconds,
        seconds=seconds,
        written_bytes=measured.written_bytes,
        read_bytes=measured.read_bytes,
        extra={"steps": len(losses) - warm_ups, "meter": measured.to_dict()} | (extra or {}),
    )
