"""Steps and modules that between them save every kind of tensor that autograd may save."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=dtype, generator=generator).requires_grad_()


class Attention(nn.Module):
    """Fused query, key and value: views of one storage at different offsets."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.heads = heads
        self.fused = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = (
            each.view(batch, length, self.heads, -1).transpose(1, 2)
            for each in self.fused(x).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def views(x: torch.Tensor) -> torch.Tensor:
    h = x * 2
    return (h[:32].sin() * h[32:].cos()).sum()


def unbound_qkv(x: torch.Tensor) -> torch.Tensor:
    q, k, v = (x * 3).view(64, 3, -1).unbind(1)
    return ((q * k).tanh() * v).sum()


def square_transpose(x: torch.Tensor) -> torch.Tensor:
    h = x * 2
    return (h @ h.t() @ h).square().mean()


def expanded(x: torch.Tensor) -> torch.Tensor:
    h = (x * 2)[:1].expand(64, 64)
    return (h * x).sin().sum()


def as_strided(x: torch.Tensor) -> torch.Tensor:
    h = x * 2
    return (h.as_strided((60, 60), (64, 1), 130) * h.as_strided((60, 60), (1, 64), 3)).sum()


def complex(x: torch.Tensor) -> torch.Tensor:
    h = torch.complex(x * 2, x * 3)
    return (h.conj() * h * h.mH).abs().sum()


def negated_imaginary(x: torch.Tensor) -> torch.Tensor:
    h = torch.complex(x * 2, x * 3)
    return (h.conj().imag * x).square().sum()


def boolean_mask(x: torch.Tensor) -> torch.Tensor:
    h = x * 2
    return torch.where(h > 0, h, h * h).sum()


def bfloat16(x: torch.Tensor) -> torch.Tensor:
    h = x.bfloat16()
    return (h @ h).float().square().mean()


def not_contiguous(x: torch.Tensor) -> torch.Tensor:
    h = (x * 2)[:, ::2]
    return (h * h.exp()).sum()


def zero_size(x: torch.Tensor) -> torch.Tensor:
    empty = (x * 2)[:0]
    return (empty * empty).sum() + (x * 3).sin().sum()


def dropout(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x * 2, 0.5).square().sum()


def saved_output(x: torch.Tensor) -> torch.Tensor:
    return (x * 0.1).exp().tanh().sigmoid().sum()


def same_storage_many_times(x: torch.Tensor) -> torch.Tensor:
    h = (x * 2).tanh()
    return sum(((h * (i + 1)) * h.sin()).sum() for i in range(5))


def autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        h = x @ x
        return F.gelu(h @ x).float().square().mean()


def checkpointed(x: torch.Tensor) -> torch.Tensor:
    def inner(h: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: (y @ y).tanh(), h * 2, use_reentrant=False).sin()

    return checkpoint(inner, x * 1.5, use_reentrant=False).square().mean()


def sparse(x: torch.Tensor) -> torch.Tensor:
    with_holes = torch.eye(64).to_sparse()
    return (torch.sparse.mm(with_holes, x * 2) * x).sum()


def embedding(x: torch.Tensor) -> torch.Tensor:
    return (F.embedding(torch.arange(640) % 64, x) ** 3).sum()


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x * x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        x, square = ctx.saved_tensors
        return gradient * (square + 2 * x * x)


def custom_function(x: torch.Tensor) -> torch.Tensor:
    return Cube.apply(x * 2).sum()


CASES = [
    views,
    unbound_qkv,
    square_transpose,
    expanded,
    as_strided,
    complex,
    negated_imaginary,
    boolean_mask,
    bfloat16,
    not_contiguous,
    zero_size,
    dropout,
    saved_output,
    same_storage_many_times,
    autocast,
    checkpointed,
    sparse,
    custom_function,
]


MODULES = {
    "attention": (Attention, (4, 32, 64)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        (2, 3, 16, 16),
    ),
    "lstm": (lambda: nn.LSTM(64, 64, 2, batch_first=True), (4, 16, 64)),
    "gru": (lambda: nn.GRU(64, 64, batch_first=True), (4, 16, 64)),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True),
        (4, 32, 64),
    ),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm(64), nn.GELU()), (32, 64)),
    "softmax": (lambda: nn.Sequential(nn.Linear(64, 64), nn.Softmax(-1)), (32, 64)),
    "pooling": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2)), (2, 3, 16, 16)),
}
