"""Sums over a block's edges, and their gradients, by the kernels that read rows where they lie.

Forward, each target adds up its sources; backward, each source adds up its targets: the same kernel
on the index turned round. Nothing is as large as the edges, and nothing is filled with zeros first::

    reduced[t] = sum of x[sources[e]]          over the edges of t
    gradient[s] = sum of arrived[target of e]  over the edges that s begins

>>> ways = Ways(torch.tensor([0, 2, 3]), torch.tensor([2, 1, 2]), num_sources=3)
>>> ways.back.pointers.tolist(), ways.back.ids.tolist()  # source 1 reaches target 0, source 2 both
([0, 0, 1, 3], [0, 0, 1])
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from shorthaul.graphs.edge_tensors import choose_builder
from shorthaul.tensors import host_kernels
from shorthaul.tensors.plain_rows import Reduction
from shorthaul.tensors.stored_rows import FLOATING, StoredRows


class Segments(NamedTuple):
    """Row `s` of a result adds up the rows `ids[pointers[s]:pointers[s + 1]]`."""

    pointers: torch.Tensor
    ids: torch.Tensor


@dataclass(frozen=True, eq=False)
class Ways:
    """A block's edges from both ends; the way back is found when a gradient first takes it."""

    pointers: torch.Tensor
    sources: torch.Tensor
    num_sources: int

    @property
    def there(self) -> Segments:
        """The sources of each target."""
        return Segments(self.pointers, self.sources)

    @functools.cached_property
    def back(self) -> Segments:
        """The targets of each source, in order."""
        counts = self.pointers.diff()
        rows = torch.arange(len(counts), dtype=self.sources.dtype)
        targets = torch.repeat_interleave(rows, counts, output_size=len(self.sources))
        found = choose_builder().sort_relations(
            self.sources, self.sources, targets, self.num_sources
        )
        return Segments(found.pointers, found.targets)


def can_sum(x: torch.Tensor) -> bool:
    """Whether `reduce_sources` takes `x`: torch.compile and torch.func know PyTorch's operators only."""
    return (
        x.device.type == "cpu"
        and x.dtype in FLOATING
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )


def reduce_sources(x: torch.Tensor, ways: Ways, op: Literal["sum", "mean"]) -> torch.Tensor:
    """The sum or mean over each target's sources; differentiable as often as one likes."""
    made: torch.Tensor = _Reduce.apply(x, ways, op, False)  # type: ignore[no-untyped-call]
    return made


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, ways: Ways, op: Reduction, is_back: bool
    ) -> torch.Tensor:
        ctx.ways, ctx.op, ctx.is_back = ways, op, is_back
        along = ways.back if is_back else ways.there
        rows = StoredRows(x.detach().contiguous(), x.dtype)
        return host_kernels.gather_reduce(rows, along.pointers, along.ids, op)

    @staticmethod
    def backward(ctx: Any, *arrived: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (gradient,) = arrived
        if ctx.op == "mean":
            counts = ctx.ways.pointers.diff().clamp(min=1)
            gradient = gradient / counts.to(gradient.dtype)[:, None]
        return _Reduce.apply(gradient, ctx.ways, "sum", not ctx.is_back), None, None, None  # type: ignore[no-untyped-call]
