"""The act of `offload`: a small GPT trained on text, its activations in memory and on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from shorthaul.cli.acts.stage import Outcome, Stage
from shorthaul.cli.acts.training import Training, compare_trainings, train
from shorthaul.datasets import python_text
from shorthaul.offload import offload_activations
from shorthaul.units import format_bytes

WIDTH, LENGTH, BATCH = 192, 128, 16
MINIMUM_BYTES = 128 * 1024


class SmallGPT(nn.Module):
    """A causal transformer over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 6, 4 * WIDTH, 0.1, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """The loss of predicting the following bytes."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        x = self.blocks(self.tokens(tokens) + self.places.weight, mask=mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), following.flatten())


def show_offload(stage: Stage) -> Outcome:
    """Train with everything kept, then within a third of that; the losses must be the same bits."""
    steps = 3 if stage.is_quick else 12
    text = python_text("1MB")

    def run(name: str, forward_and_backward: Callable[[nn.Module, Any], torch.Tensor]) -> Training:
        torch.manual_seed(0)
        batches = text.batches(BATCH, LENGTH, steps)
        return train(name, SmallGPT(), batches, forward_and_backward, stage.say)

    counting = offload_activations(policy=lambda _: False, minimum_bytes=MINIMUM_BYTES)
    with counting:
        _step(SmallGPT(), next(text.batches(BATCH, LENGTH, 1)))
    kept_bytes = counting.report().counts.peak_saved_bytes
    counting.close()
    plain = run("kept in memory", _step)
    offload = offload_activations(budget=kept_bytes // 3, minimum_bytes=MINIMUM_BYTES)
    with offload:
        ours = run("on disk", _step)
    peak_bytes = offload.report().counts.peak_live_bytes
    offload.close()
    plain = replace(
        plain,
        name=f"kept: {format_bytes(kept_bytes)} of activations",
        extra={"activation_bytes": kept_bytes},
    )
    ours = replace(
        ours,
        name=f"offloaded: {format_bytes(peak_bytes)} at the peak",
        extra={"activation_bytes": peak_bytes},
    )
    return compare_trainings(plain, ours, holds=plain.losses == ours.losses)


def _step(model: nn.Module, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(*batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()
