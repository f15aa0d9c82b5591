"""One exchange of a layer's sources, and of their gradients backwards, between all ranks.

::

    forward     rows and averages to those who read them      as `ServedRows` has them
    backward    gradients the same way back                   where the owner adds them up

Bytes of a rank and direction: 32 to each other rank, and the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shorthaul.distributed.ranks.line import Line
from shorthaul.distributed.ranks.wire import Wire
from shorthaul.distributed.tables.row_exchange import HEADER_BYTES, Round, announce
from shorthaul.distributed.tables.traffic import Traffic
from shorthaul.distributed.whole_graph.halo_plan import HaloPlan
from shorthaul.distributed.whole_graph.served_rows import ServedRows


@dataclass(frozen=True, eq=False)
class Halo:
    """What ranks have agreed to send each other: for each tensor of a layer what comes, and what goes."""

    plans: tuple[HaloPlan, ...]
    served: tuple[ServedRows, ...]


@dataclass(frozen=True, eq=False)
class HaloExchange:
    """The exchanges of one layer in one pass."""

    line: Line
    halo: Halo
    traffic: Traffic
    parts: str  # this rank's, for errors
    words: str  # what is exchanged, the same on every rank
    number: int  # of the pass, the same on every rank

    def receive(self, own: Sequence[torch.Tensor], problem: Exception | None) -> list[torch.Tensor]:
        """For each tensor of own rows those that other ranks send; a collective, and so is its backward pass.

        A `problem` of this rank is raised here, and told to all others.
        """
        if problem is not None:
            self.swap([], [], [], f"sources of {self.words}", problem)
        outgoing = [
            served.outgoing(each) for served, each in zip(self.halo.served, own, strict=True)
        ]
        found: tuple[torch.Tensor, ...] = _Receive.apply(self, *outgoing)  # type: ignore[no-untyped-call]
        return list(found)

    def forward(self, outgoing: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Rows of other ranks for rows of this one."""
        going = [each.counts for each in self.halo.served]
        coming = [each.counts for each in self.halo.plans]
        found = self.swap(outgoing, going, coming, f"sources of {self.words}", None)
        self.traffic.exchanges += 1
        self.traffic.far_rows += sum(sum(each.rows) for each in self.halo.plans)
        self.traffic.far_sums += sum(sum(each.averages) for each in self.halo.plans)
        self.traffic.served_rows += sum(len(each.rows) for each in self.halo.served)
        self.traffic.served_sums += sum(each.averages for each in self.halo.served)
        return found

    def backward(
        self, gradients: Sequence[torch.Tensor], needed: Sequence[int]
    ) -> list[torch.Tensor]:
        """Gradients of what was sent, for those of what was received; `needed` are the tensors that have any."""
        going = [self.halo.plans[each].counts for each in needed]
        coming = [self.halo.served[each].counts for each in needed]
        told = f"gradients {', '.join(map(str, needed))} of {self.words}"
        return self.swap(gradients, going, coming, told, None)

    def swap(
        self,
        send: Sequence[torch.Tensor],
        going: Sequence[Sequence[int]],
        coming: Sequence[Sequence[int]],
        words: str,
        problem: Exception | None,
    ) -> list[torch.Tensor]:
        """Rows of all tensors in one round."""

        def work(wire: Wire) -> list[torch.Tensor]:
            announce(wire, Round(words, self.number, self.parts), [], problem)
            ranks = wire.world.ranks
            widths = [each.shape[1:].numel() for each in send]
            together = torch.cat(
                [piece.reshape(-1) for rank in _by_rank(send, going, ranks) for piece in rank]
            )
            sizes = [
                [_sum_products(counts, widths, rank) for rank in range(ranks)]
                for counts in (going, coming)
            ]
            received = wire.exchange(together, *sizes)
            if ranks > 1:
                header_bytes = HEADER_BYTES * (ranks - 1)
                self.traffic.note_round(
                    header_bytes + received.nbytes, header_bytes + together.nbytes
                )
            return _sort_out(received, send, coming, ranks)

        return self.line.run(f"{words}, pass {self.number:,}", work)


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: HaloExchange, *outgoing: torch.Tensor) -> Any:
        ctx.exchange = exchange
        return tuple(exchange.forward(outgoing))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        needed = [each for each, is_so in enumerate(ctx.needs_input_grad[1:]) if is_so]
        found = ctx.exchange.backward([gradients[each] for each in needed], needed)
        made: list[torch.Tensor | None] = [None] * len(gradients)
        for each, gradient in zip(needed, found, strict=True):
            made[each] = gradient
        return (None, *made)


def _by_rank(
    tensors: Sequence[torch.Tensor], counts: Sequence[Sequence[int]], ranks: int
) -> list[list[torch.Tensor]]:
    """For each rank its rows of every tensor."""
    split = [torch.split(each, list(rows)) for each, rows in zip(tensors, counts, strict=True)]
    return [[each[rank] for each in split] for rank in range(ranks)]


def _sum_products(counts: Sequence[Sequence[int]], widths: Sequence[int], rank: int) -> int:
    return sum(rows[rank] * width for rows, width in zip(counts, widths, strict=True))


def _sort_out(
    received: torch.Tensor,
    like: Sequence[torch.Tensor],
    counts: Sequence[Sequence[int]],
    ranks: int,
) -> list[torch.Tensor]:
    """The rows of every tensor, by rank, of numbers that came by rank and tensor."""
    shapes = [each.shape[1:] for each in like]
    sizes = [
        rows[rank] * shape.numel()
        for rank in range(ranks)
        for rows, shape in zip(counts, shapes, strict=True)
    ]
    pieces = torch.split(received, sizes)
    found = []
    for number, shape in enumerate(shapes):
        mine = pieces[number :: len(shapes)]
        joined = received if len(shapes) == 1 else torch.cat(mine)
        found.append(joined.view(sum(counts[number]), *shape))
    return found
