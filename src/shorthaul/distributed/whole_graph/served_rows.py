"""What a rank sends for one layer: rows of its own, and averages of them, as every other rank asked once.

>>> served = ServedRows(
...     rows=torch.tensor([1]), averaged=torch.tensor([0, 1]), pointers=torch.tensor([0, 2]),
...     order=torch.tensor([1, 0]), counts=[0, 2],
... )
>>> served.outgoing(torch.tensor([[1.0], [3.0]]))
tensor([[2.],
        [3.]])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shorthaul.distributed.ranks.wire import Wire
from shorthaul.distributed.tables.row_exchange import HEADER_BYTES
from shorthaul.distributed.tables.traffic import Traffic
from shorthaul.distributed.whole_graph.halo_plan import HaloPlan
from shorthaul.distributed.whole_graph.own_rows import OwnRows
from shorthaul.graphs.sampling.block_sums import reduce_block

_COUNT_BYTES = 8
_COUNTS = 3  # for each tensor of the layer: rows, averages, and what averages are of


@dataclass(frozen=True, eq=False)
class ServedRows:
    """The counterpart of other ranks' `HaloPlan`s, for one tensor of the layer."""

    rows: torch.Tensor  # own rows that are sent as they are, by rank
    averaged: torch.Tensor  # own rows that averages are of, by rank and average
    pointers: torch.Tensor  # where each average's begin
    order: torch.Tensor | None  # from (rows, averages) to ranks; None: there are no averages
    counts: list[int]  # rows and averages for each rank

    @property
    def averages(self) -> int:
        """How many are sent."""
        return len(self.pointers) - 1

    def outgoing(self, x: torch.Tensor) -> torch.Tensor:
        """What is sent, by rank; gradients flow back to own rows, added up."""
        rows = x.index_select(0, self.rows)
        if self.order is None:
            return rows
        wide = x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
        means: torch.Tensor = reduce_block(wide, self.pointers, self.averaged, True)
        together = torch.cat([rows, means.view(-1, *x.shape[1:])])
        return together.index_select(0, self.order)


def tell_halos(
    wire: Wire,
    plans: Sequence[HaloPlan],
    owns: Sequence[OwnRows],
    dtype: torch.dtype,
    traffic: Traffic,
) -> tuple[ServedRows, ...]:
    """Tell every owner what this rank reads of it, and hear what others read; once for all layers.

    `plans` and `owns` have an entry for each tensor that a layer has, `dtype` is that of ids.
    """
    ranks = wire.world.ranks
    told = [_parts_by_rank(each, ranks) for each in plans]
    counts = [[len(part) for mine in told for part in mine[rank]] for rank in range(ranks)]
    mine = torch.tensor(counts, dtype=torch.int64, device="cpu").view(ranks, -1)
    heard = wire.exchange(mine, [1] * ranks, [1] * ranks).tolist()
    ids = torch.cat([part for rank in range(ranks) for mine in told for part in mine[rank]])
    sent = ids.to(dtype)
    received = wire.exchange(sent, [sum(each) for each in counts], [sum(each) for each in heard])
    fixed = (HEADER_BYTES + _COUNT_BYTES * _COUNTS * len(plans)) * (ranks - 1)
    traffic.note_round(fixed + received.nbytes, fixed + sent.nbytes)
    pieces = list(torch.split(received.long(), [count for each in heard for count in each]))
    stride = _COUNTS * len(plans)
    return tuple(
        _serve(
            own,
            [pieces[at : at + _COUNTS] for at in range(_COUNTS * number, len(pieces), stride)],
        )
        for number, own in enumerate(owns)
    )


def _parts_by_rank(plan: HaloPlan, ranks: int) -> list[tuple[torch.Tensor, ...]]:
    """For each owner the ids of rows, the lengths of averages, and the ids that these are of."""
    rows, lengths = torch.split(plan.ids, plan.rows), torch.split(plan.lengths, plan.averages)
    averaged = torch.split(plan.averaged, [int(each.sum()) for each in lengths])
    return [(rows[rank], lengths[rank], averaged[rank]) for rank in range(ranks)]


def _serve(own: OwnRows, asked: Sequence[Sequence[torch.Tensor]]) -> ServedRows:
    rows, lengths, averaged = (torch.cat(list(each)) for each in zip(*asked, strict=True))
    pointers = torch.zeros(len(lengths) + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(lengths, 0, out=pointers[1:])
    order = None
    if len(lengths):
        one, other = 0, len(rows)
        places = []
        for each in asked:
            places.append(torch.arange(one, one + len(each[0]), dtype=torch.int64, device="cpu"))
            places.append(
                torch.arange(other, other + len(each[1]), dtype=torch.int64, device="cpu")
            )
            one, other = one + len(each[0]), other + len(each[1])
        order = torch.cat(places)
    counts = [len(each[0]) + len(each[1]) for each in asked]
    return ServedRows(own.places(rows), own.places(averaged), pointers, order, counts)
