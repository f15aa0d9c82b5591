"""Which seeds each rank trains on in each step: the same on all ranks, known before anything is drawn.

>>> plan = Schedule(torch.tensor([4, 5, 6, 7, 8]), batch_size=4, seed=0)
>>> plan.steps, plan.order(0).tolist(), plan.batch(plan.order(0), 1).tolist()
(2, [4, 5, 6, 7, 8], [8])
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shorthaul.graphs.sampling.plain import mix


@dataclass(frozen=True, eq=False)
class Schedule:
    """The batches of all epochs; a batch is that of all ranks together."""

    seeds: torch.Tensor  # global ids
    batch_size: int
    seed: int
    shuffle: bool = False
    drop_last: bool = False

    @property
    def steps(self) -> int:
        """Batches of an epoch."""
        whole, rest = divmod(len(self.seeds), self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    def order(self, epoch: int) -> torch.Tensor:
        """All seeds as one epoch takes them: as `sh.MiniBatchLoader` does with the same seed."""
        if not self.shuffle:
            return self.seeds
        generator = torch.Generator().manual_seed(mix(mix(self.seed) ^ mix(epoch)))
        return self.seeds[
            torch.randperm(len(self.seeds), generator=generator, dtype=torch.int64, device="cpu")
        ]

    def batch(self, order: torch.Tensor, step: int) -> torch.Tensor:
        """The seeds of one step, each once, as `sh.MiniBatchLoader` has them: copies go to no two ranks."""
        seeds = order[step * self.batch_size : (step + 1) * self.batch_size]
        distinct, numbers = torch.unique(seeds, return_inverse=True)
        places = torch.arange(len(seeds), dtype=torch.int64, device="cpu")
        first = torch.full_like(distinct, len(seeds)).scatter_reduce_(0, numbers, places, "amin")
        return seeds[first.sort().values]


def share_out(owners: torch.Tensor, ranks: int) -> torch.Tensor:
    """The rank that trains on each seed of a batch: equally many each, its own where that is possible.

    >>> share_out(torch.tensor([0, 0, 0, 1, 0]), 2).tolist()
    [0, 0, 0, 1, 1]
    """
    count = len(owners)
    bounds = torch.tensor(
        [count * rank // ranks for rank in range(ranks + 1)], dtype=torch.int64, device="cpu"
    )
    # The first rank gets what is over last, or a batch of one seed would leave rank 0 without.
    room = bounds.diff().flip(0)
    order = torch.argsort(owners, stable=True)
    owned = torch.bincount(owners, minlength=ranks)
    begins = torch.cumsum(owned, 0) - owned
    places = torch.empty_like(order)
    places[order] = torch.arange(count, dtype=torch.int64, device="cpu") - begins[owners[order]]
    is_kept = places < room[owners]
    ranks_of = torch.where(is_kept, owners, -1)
    left = room - torch.minimum(owned, room)
    everyone = torch.arange(ranks, dtype=torch.int64, device="cpu")
    ranks_of[~is_kept] = torch.repeat_interleave(everyone, left)
    return ranks_of
