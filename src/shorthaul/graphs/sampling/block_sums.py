"""Sums over a block's edges, as two operators of which each is the other's gradient.

Forward, each target adds up its sources; backward, each source adds up its targets: the same kernel
on the index turned round. Nothing is as large as the edges, and nothing is filled with zeros first::

    reduce_block(x)[t]        = sum of x[sources[e]]            over the edges of t
    spread_block(gradient)[s] = sum of gradient[target of e]    over the edges that s begins

With `is_mean`, the edges of `t` count `1 / degree(t)` each, both ways.

>>> pointers, sources = torch.tensor([0, 2, 3]), torch.tensor([2, 1, 2])
>>> reduce_block(torch.tensor([[1.0], [2.0], [4.0]]), pointers, sources, False).tolist()
[[6.0], [4.0]]
>>> spread_block(torch.tensor([[1.0], [10.0]]), pointers, sources, 3, False).tolist()
[[0.0], [1.0], [11.0]]
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shorthaul.graphs.edge_tensors import choose_builder
from shorthaul.jit import define_operator
from shorthaul.tensors.kernels import host_kernels
from shorthaul.tensors.kernels.stored_rows import StoredRows


def _reduce(x: Tensor, pointers: Tensor, sources: Tensor, is_mean: bool) -> Tensor:
    rows = StoredRows(x.detach().contiguous(), x.dtype)
    return host_kernels.gather_reduce(rows, pointers, sources, "mean" if is_mean else "sum")


def _reduce_on_device(x: Tensor, pointers: Tensor, sources: Tensor, is_mean: bool) -> Tensor:
    mode = "mean" if is_mean else "sum"
    return torch.nn.functional.embedding_bag(
        sources, x.detach(), pointers, mode=mode, include_last_offset=True
    )


def _fake_reduce(x: Tensor, pointers: Tensor, sources: Tensor, is_mean: bool) -> Tensor:  # noqa: ARG001
    return x.new_empty((pointers.shape[0] - 1, x.shape[1]))


def _save_for_reduce(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    x, pointers, sources, ctx.is_mean = inputs
    ctx.num_sources = x.shape[0]
    ctx.save_for_backward(pointers, sources)


def _reduce_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    pointers, sources = ctx.saved_tensors
    return spread_block(gradient, pointers, sources, ctx.num_sources, ctx.is_mean), None, None, None


def _spread(
    gradient: Tensor, pointers: Tensor, sources: Tensor, num_sources: int, is_mean: bool
) -> Tensor:
    degrees = pointers.diff()
    targets = torch.arange(len(degrees), dtype=sources.dtype, device=sources.device)
    targets = torch.repeat_interleave(targets, degrees, output_size=len(sources))
    turned = choose_builder(sources).sort_relations(sources, sources, targets, num_sources)
    if is_mean:
        gradient = gradient / degrees.clamp(min=1).to(gradient.dtype)[:, None]
    add_up = _reduce if gradient.device.type == "cpu" else _reduce_on_device
    return add_up(gradient, turned.pointers, turned.targets, is_mean=False)


def _fake_spread(
    gradient: Tensor,
    pointers: Tensor,  # noqa: ARG001
    sources: Tensor,  # noqa: ARG001
    num_sources: int,
    is_mean: bool,  # noqa: ARG001
) -> Tensor:
    return gradient.new_empty((num_sources, gradient.shape[1]))


def _save_for_spread(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    _, pointers, sources, _, ctx.is_mean = inputs
    ctx.save_for_backward(pointers, sources)


def _spread_backward(ctx: Any, arrived: Tensor) -> tuple[Tensor, None, None, None, None]:
    pointers, sources = ctx.saved_tensors
    return reduce_block(arrived, pointers, sources, ctx.is_mean), None, None, None, None


reduce_block = define_operator(
    "reduce_block(Tensor x, Tensor pointers, Tensor sources, bool is_mean) -> Tensor",
    cpu=_reduce,
    cuda=_reduce_on_device,
    fake=_fake_reduce,
    setup_context=_save_for_reduce,
    backward=_reduce_backward,
)
spread_block = define_operator(
    "spread_block(Tensor gradient, Tensor pointers, Tensor sources, SymInt num_sources, bool is_mean) "
    "-> Tensor",
    cpu=_spread,
    cuda=_spread,
    fake=_fake_spread,
    setup_context=_save_for_spread,
    backward=_spread_backward,
)
