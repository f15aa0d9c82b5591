"""Train a small GPT on text under a budget of activation memory, with the loss curve of keep-all.

    python examples/transformer/train_gpt_offload.py

The corpus is the source of the Python standard library on this machine. The same model is trained
twice from the same seed: everything kept in memory, then with activations on disk. The losses are
equal to the last bit; the report says what was moved.
"""

from __future__ import annotations

import argparse
import contextlib

import rich
import torch
from torch import nn

import shorthaul as sh

LENGTH, WIDTH, BATCH = 128, 128, 16


class GPT(nn.Module):
    """A causal transformer over bytes, made of PyTorch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, 0.1, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """The loss of predicting the following bytes."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        x = self.blocks(self.tokens(tokens) + self.places.weight, mask=mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), following.flatten())


def train(steps: int, offload: contextlib.AbstractContextManager[object]) -> list[float]:
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for batch in sh.datasets.python_text("1MB").batches(BATCH, LENGTH, steps):
        with offload:  # the one line
            loss = model(*batch)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--budget", default="24MiB", help="activation bytes allowed in memory")
    options = parser.parse_args()
    kept = train(options.steps, contextlib.nullcontext())
    offload = sh.offload_activations(budget=options.budget, minimum_bytes="128KiB")
    moved = train(options.steps, offload)
    for step in range(0, options.steps, max(1, options.steps // 10)):
        print(f"step {step:3}   kept {kept[step]:.6f}   offloaded {moved[step]:.6f}")
    if kept != moved:
        raise SystemExit("the losses differ, which must never happen")
    print("every loss is equal to the last bit")
    rich.print(offload.report().table())


if __name__ == "__main__":
    main()
