"""GPT, BERT and T5 shapes in plain PyTorch, for benchmarks that train on a CPU.

As wide as GPT-2 small, BERT base and T5 base are, with four layers instead of twelve, so that a step takes
seconds here; the proportions of what they save are those of the large ones. Weights and tokens are random: what is measured depends on neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

VOCABULARY = 1024


@dataclass(frozen=True)
class Shape:
    """How large a model and its batch are."""

    width: int = 768
    layers: int = 4
    heads: int = 12
    length: int = 512
    batch: int = 4


class TextModel(nn.Module):
    """Embeddings, blocks and a head; `kind` says how the blocks are connected.

    `is_checkpointed` recomputes every block in the backward pass.
    """

    def __init__(self, kind: str, shape: Shape, *, is_checkpointed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.is_checkpointed = kind, is_checkpointed
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.places = nn.Embedding(shape.length, shape.width)
        own = shape.layers // 2 if kind == "t5" else shape.layers
        self.blocks = nn.ModuleList(_make_block(nn.TransformerEncoderLayer, shape, own))
        self.decoder = nn.ModuleList(
            _make_block(nn.TransformerDecoderLayer, shape, shape.layers - own)
        )
        self.head = nn.Sequential(nn.LayerNorm(shape.width), nn.Linear(shape.width, VOCABULARY))
        mask = nn.Transformer.generate_square_subsequent_mask(shape.length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of predicting `targets`."""
        causal = {"src_mask": self.mask, "is_causal": True} if self.kind == "gpt" else {}
        x = self._embed(tokens)
        for block in self.blocks:
            x = self._run(lambda h, block=block: block(h, **causal), x)
        if self.kind == "t5":
            memory, x = x, self._embed(targets)
            for block in self.decoder:
                x = self._run(
                    lambda h, m, block=block: block(h, m, tgt_mask=self.mask, tgt_is_causal=True),
                    x,
                    memory,
                )
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.tokens(tokens) + self.places.weight
        return embedded

    def _run(self, block: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        if self.is_checkpointed:
            again: torch.Tensor = checkpoint(block, *inputs, use_reentrant=False)
            return again
        return block(*inputs)


def _make_block(kind: type[nn.Module], shape: Shape, count: int) -> list[nn.Module]:
    return [
        kind(
            shape.width,
            shape.heads,
            4 * shape.width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        for _ in range(count)
    ]


def make_batch(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets."""
    generator = torch.Generator().manual_seed(1)
    size = (shape.batch, shape.length)
    return (
        torch.randint(0, VOCABULARY, size, generator=generator),
        torch.randint(0, VOCABULARY, size, generator=generator),
    )
