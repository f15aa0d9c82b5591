"""A GPT whose activations dominate: all of them in memory, and most of them on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shorthaul.cli.acts.stage import Run
from shorthaul.cli.acts.training import train
from shorthaul.datasets import python_text
from shorthaul.offload import offload_activations
from shorthaul.units import format_bytes

WIDTH, LENGTH = 256, 256
BUDGET_BYTES = 96 * 2**20
WARM_UPS = 2  # the first step is watched, from the second on it is planned


class SmallGPT(nn.Module):
    """A causal transformer over bytes."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, 0.1, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """The loss of predicting the following bytes."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        x = self.blocks(self.tokens(tokens) + self.places.weight, mask=mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), following.flatten())


def play(role: str, *, is_quick: bool, say: Callable[[str], None]) -> Run:
    """Train with everything kept, or within the budget."""
    steps = WARM_UPS + (1 if is_quick else 4)
    torch.manual_seed(0)
    model = SmallGPT(6 if is_quick else 8)
    batches = python_text("1MB").batches(12 if is_quick else 16, LENGTH, steps)
    if role == "plain":
        return train(role, "activations kept", model, batches, _step, say, warm_ups=WARM_UPS)
    offload = offload_activations(budget=BUDGET_BYTES)
    with offload:
        what = f"at most {format_bytes(BUDGET_BYTES)} of activations in memory"
        run = train(role, what, model, batches, _step, say, warm_ups=WARM_UPS)
    counts = offload.report().counts
    run.extra["activation_bytes"] = counts.peak_saved_bytes
    run.extra["live_bytes"] = counts.peak_live_bytes
    offload.close()
    return run


def _step(model: nn.Module, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(*batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()
