"""The same model trained twice, plainly and with shorthaul: what every part's act compares."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from shorthaul.cli.acts.stage import Outcome
from shorthaul.meter import Meter, meter
from shorthaul.units import format_bytes, format_seconds

HEADINGS = ("", "last loss", "time", "peak memory", "moved to disk", "moved from disk")


@dataclass(frozen=True)
class Training:
    """One run: its losses, and what it took."""

    name: str
    losses: tuple[float, ...]
    seconds: float
    measured: Meter
    extra: dict[str, Any]

    def row(self) -> tuple[str, ...]:
        """A row of the closing table."""
        peak = self.measured.peak_resident_bytes
        return (
            self.name,
            f"{self.losses[-1]:.6f}",
            format_seconds(self.seconds),
            "unknown" if peak is None else format_bytes(peak),
            format_bytes(self.measured.written_bytes),
            format_bytes(self.measured.read_bytes),
        )

    def figures(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "losses": list(self.losses),
            "seconds": self.seconds,
            "peak_resident_bytes": self.measured.peak_resident_bytes,
            "written_bytes": self.measured.written_bytes,
            "read_bytes": self.measured.read_bytes,
            **self.extra,
        }


def train(
    name: str,
    model: torch.nn.Module,
    batches: Iterable[Any],
    step: Callable[[torch.nn.Module, Any], torch.Tensor],
    say: Callable[[str], None],
    *,
    learning_rate: float = 1e-3,
) -> Training:
    """Train `model`; `step` runs forward and backward on a batch and returns the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate)
    losses: list[float] = []
    started = time.perf_counter()
    with meter() as measured:
        for batch in batches:
            optimizer.zero_grad()
            losses.append(step(model, batch).item())
            optimizer.step()
            say(f"{name}: step {len(losses)}, loss {losses[-1]:.4f}")
    return Training(name, tuple(losses), time.perf_counter() - started, measured, {})


def compare_trainings(plain: Training, ours: Training, *, holds: bool) -> Outcome:
    """The closing table of two runs."""
    figures = {"plain": plain.figures(), "shorthaul": ours.figures()}
    return Outcome(HEADINGS, (plain.row(), ours.row()), figures, holds)
