"""What may be computed again is told from what may not, by looking at it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from shorthaul.advice.holding.repeatable import why_not_repeatable


@dataclasses.dataclass
class Settings:
    width: int = 8
    heads: int = 2


def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


class Attention(nn.Module):
    """As people write it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.qkv = nn.Linear(settings.width, 3 * settings.width)
        self.out = nn.Linear(settings.width, settings.width)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("mask", torch.ones(4, 4).tril().bool())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            each.view(b, t, self.settings.heads, -1).transpose(1, 2)
            for each in self.qkv(x).chunk(3, dim=-1)
        )
        shares = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        shares = shares.masked_fill(~self.mask[:t, :t], float("-inf"))
        y = self.drop(functional.softmax(shares, dim=-1)) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(8), Attention(Settings())
        self.act = functional.gelu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return scaled(self._mix(x), 0.5)

    def _mix(self, x: torch.Tensor) -> torch.Tensor:
        x += self.act(x)
        return x


def test_blocks_that_only_compute_may_be_computed_again():
    assert why_not_repeatable(Block()) is None
    assert why_not_repeatable(nn.TransformerEncoderLayer(8, 2)) is None
    assert why_not_repeatable(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout())) is None


LOSSES: list[Any] = []


class Counts(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return x


class Collects(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        LOSSES.append(x.mean())
        return x


class CollectsInItself(Block):
    def __init__(self) -> None:
        super().__init__()
        self.losses: dict[int, Any] = {1: 2}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        losses = self.losses
        losses[len(losses)] = x.mean()
        return x


class CallsWhatCounts(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.remember(x)

    def remember(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x
        return x


class Prints(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("here")
        return x


class DrawsElsewhere(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import random

        return x * random.random()


class Above(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x
        return x


class AsksAbove(Above):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


class Cache:
    def put(self, x: torch.Tensor) -> torch.Tensor:
        return x


class KeepsACache(Block):
    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cache.put(x)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (Counts(), "Counts calls `getattr`"),
        (Collects(), "Collects uses `LOSSES`"),
        (CollectsInItself(), "CollectsInItself keeps an object of its own: `losses`"),
        (CallsWhatCounts(), "CallsWhatCounts sets `last` in `remember`"),
        (Prints(), "Prints calls `print`"),
        (DrawsElsewhere(), "DrawsElsewhere imports `random`"),
        (AsksAbove(), "AsksAbove sets `last` in `forward`"),
        (KeepsACache(), "KeepsACache keeps an object of its own: `cache`"),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "BatchNorm1d counts its batches"),
        (nn.Embedding(4, 4, max_norm=1.0), "Embedding changes its weights"),
        (
            nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)),
            "ParametrizedLinear keeps something around",
        ),
    ],
)
def test_what_keeps_something_is_left_alone(block, reason):
    assert (why_not_repeatable(block) or "").startswith(reason)


def test_hooks_and_compiled_modules_are_left_alone():
    hooked, replaced = nn.Linear(2, 2), nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *_: None)
    assert why_not_repeatable(nn.Sequential(hooked)) == "Linear has hooks"
    replaced.forward = replaced.forward  # type: ignore[method-assign]
    assert why_not_repeatable(replaced) == "Linear had its `forward` replaced, or compiled"


def test_layers_of_transformers_are_known(monkeypatch):
    transformers = pytest.importorskip("transformers")
    gpt = transformers.models.gpt2.modeling_gpt2.GPT2Block(
        transformers.GPT2Config(n_embd=8, n_head=2)
    )
    assert why_not_repeatable(gpt) is None
    gpt.gradient_checkpointing = True
    assert why_not_repeatable(gpt) == "GPT2Block is computed again already"
