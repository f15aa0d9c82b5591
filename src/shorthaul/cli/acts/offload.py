"""A GPT whose activations dominate: all of them in memory, and most of them on disk."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from shorthaul.cli.acts.cue import Cue
from shorthaul.cli.acts.stage import Run
from shorthaul.cli.acts.training import train
from shorthaul.datasets import python_text
from shorthaul.offload import offload_activations
from shorthaul.units import format_bytes

# A byte of activations stands for about `WIDTH` operations: the wider, the more time the disk has.
WIDTH, HEADS, LENGTH, BATCH, LAYERS = 384, 6, 256, 24, 6
BUDGET_BYTES = 96 * 2**20
WARM_UPS = 2  # the first step is watched, from the second on it is planned


class Block(nn.Module):
    """Attention and a feed-forward network, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.projected, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of tokens, of the same shape."""
        heads = self.projected(self.first(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind()
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).flatten(2))
        added: torch.Tensor = self.network(self.second(x))
        return x + added


class SmallGPT(nn.Module):
    """A causal transformer over bytes."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """The loss of predicting the following bytes."""
        x = self.norm(self.blocks(self.tokens(tokens) + self.places.weight))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), following.flatten())


def play(role: str, *, is_quick: bool, cue: Cue) -> Run:
    """Train with everything kept, or within the budget."""
    steps = WARM_UPS + (1 if is_quick else 3)
    torch.manual_seed(0)
    model = SmallGPT(LAYERS)
    turns = ([batch] for batch in python_text("1MB").batches(BATCH, LENGTH, steps))
    if role == "plain":
        return train(role, "all activations kept", model, turns, _step, cue, warm_ups=WARM_UPS)
    offload = offload_activations(budget=BUDGET_BYTES)
    with offload:
        what = f"at most {format_bytes(BUDGET_BYTES)} of activations in memory, the rest on disk"
        run = train(role, what, model, turns, _step, cue, warm_ups=WARM_UPS)
    counts = offload.report().counts
    run.extra["activation_bytes"] = counts.peak_saved_bytes
    run.extra["live_bytes"] = counts.peak_live_bytes
    offload.close()
    return run


def _step(model: nn.Module, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(*batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()
