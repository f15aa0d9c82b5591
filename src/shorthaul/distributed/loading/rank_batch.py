"""What a rank's loader hands out: its share of a batch of all ranks."""

from __future__ import annotations

from dataclasses import dataclass

from shorthaul.graphs import MiniBatch


@dataclass(frozen=True, eq=False, repr=False)
class RankBatch(MiniBatch):
    """A `MiniBatch` of this rank's seeds. Made by `sh.distributed.MiniBatchLoader`.

    `loss_scale` makes gradients those of the mean over the whole batch, also where ranks have unequally
    many seeds or none: `cross_entropy(.., reduction="sum") * batch.loss_scale` under DDP, which takes the
    mean over ranks.
    """

    global_seeds: int = 0  # of all ranks together, each once
    ranks: int = 1  # that share the batch

    @property
    def loss_scale(self) -> float:
        """For a sum of losses: ranks / seeds of all ranks."""
        return self.ranks / max(1, self.global_seeds)
