"""What a rank reads of others for one layer, each row once: worked out from its own edges alone.

>>> edges = torch.tensor([[0, 7, 8, 9, 7], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1]])
>>> own, owners = OwnRows((range(2),)), torch.tensor([0, 1, 1, 1, 1])
>>> plan_halo(*edges, owners, own, rank=0, ranks=2, averages=False).places.tolist()
[0, 2, 3, 4, 2]
>>> plan = plan_halo(*edges, owners, own, rank=0, ranks=2, averages=True)
>>> plan.places.tolist()  # row 2 is 7's, row 3 the average of 8 and 9, which two edges read
[0, 2, 3, 3, 2]
>>> plan.rows, plan.averages, plan.lengths.tolist(), plan.averaged.tolist()
([0, 1], [0, 1], [2], [8, 9])
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shorthaul.distributed.whole_graph.choice import choose_averages
from shorthaul.distributed.whole_graph.own_rows import OwnRows


@dataclass(frozen=True, eq=False)
class HaloPlan:
    """The rows that come after a rank's own: from each owner in order first rows, then averages."""

    places: (
        torch.Tensor
    )  # (E,) for each edge where its source is: an own row, or one that is received
    rows: list[int]  # from each rank
    ids: torch.Tensor  # the global ids of these, ascending for each
    averages: list[int]  # from each rank
    lengths: torch.Tensor  # of how many edges each average is
    averaged: torch.Tensor  # the global ids of their sources

    @property
    def counts(self) -> list[int]:
        """What each rank sends."""
        return [one + other for one, other in zip(self.rows, self.averages, strict=True)]


def plan_halo(
    sources: torch.Tensor,
    relations: torch.Tensor,
    targets: torch.Tensor,
    owners: torch.Tensor,
    own: OwnRows,
    *,
    rank: int,
    ranks: int,
    averages: bool,
) -> HaloPlan:
    """Sort out edges that come by target, and by relation within each.

    Edges that read an average read it once each, so layers count as many as there are: a mean stays the
    mean, a sum the sum.
    """
    places = torch.empty(len(sources), dtype=torch.int64, device="cpu")
    is_own = owners == rank
    places[is_own] = own.places(sources[is_own])
    heard = targets.long() * (int(relations.max()) + 1 if len(relations) else 1) + relations
    rows, made = [0] * ranks, [0] * ranks
    empty = torch.empty(0, dtype=torch.int64, device="cpu")
    ids, lengths, averaged = [empty], [empty], [empty]
    start = own.count
    for other in range(ranks):
        if other == rank:
            continue
        at = (owners == other).nonzero()[:, 0]
        by_average = torch.zeros_like(at, dtype=torch.bool)
        if averages:
            by_average = choose_averages(sources[at], heard[at])
        row_at, average_at = at[~by_average], at[by_average]
        found, place = torch.unique(sources[row_at].long(), return_inverse=True)
        places[row_at] = place + start
        start += len(found)
        _, place, counts = torch.unique_consecutive(
            heard[average_at], return_inverse=True, return_counts=True
        )
        places[average_at] = place + start
        start += len(counts)
        rows[other], made[other] = len(found), len(counts)
        ids.append(found)
        lengths.append(counts)
        averaged.append(sources[average_at].long())
    return HaloPlan(places, rows, torch.cat(ids), made, torch.cat(lengths), torch.cat(averaged))
