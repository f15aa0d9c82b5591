"""What a `LinkLoader` hands out: a mini-batch around the two ends of some edges."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from shorthaul.graphs.loading.mini_batch import MiniBatch
from shorthaul.graphs.sampling.blocks import NeighborSample
from shorthaul.tensors.cuda.gather import copy_ahead


@dataclass(frozen=True, eq=False, repr=False)
class LinkBatch(MiniBatch):
    """A `MiniBatch` whose seeds are the ends of edges: true ones, then negative ones.

    With `z` the output of a model's last layer, `(z[batch.sources] * z[batch.targets]).sum(1)` is a
    score for each pair, to be compared with `batch.labels`. The negatives of positive `p` are pairs
    `num_positives + p * n` to `num_positives + (p + 1) * n`, with `n` of them for each.
    """

    sources: torch.Tensor = field(kw_only=True)  # (pairs,) rows of `seeds`
    targets: torch.Tensor = field(kw_only=True)  # (pairs,)
    relations: torch.Tensor = field(kw_only=True)  # (pairs,) numbers of the graph's relations
    times: torch.Tensor | None = field(kw_only=True)  # (pairs,) moments
    edges: torch.Tensor | None = field(kw_only=True)  # (positives,) ids, of edges given by id
    num_positives: int = field(kw_only=True)  # how many of the pairs are true

    def to(self, device: torch.device | str) -> LinkBatch:
        """The same on another device."""
        moved = super().to(device)
        assert isinstance(moved, LinkBatch)

        def move(value: torch.Tensor | None) -> torch.Tensor | None:
            return None if value is None else copy_ahead(value, device)

        return replace(
            moved,
            sources=copy_ahead(self.sources, device),
            targets=copy_ahead(self.targets, device),
            relations=copy_ahead(self.relations, device),
            times=move(self.times),
            edges=move(self.edges),
        )

    def __repr__(self) -> str:
        pairs = self.sources.shape[0]
        return (
            f"LinkBatch({self.number}: {self.num_positives:,} edges, "
            f"{pairs - self.num_positives:,} negatives, {self.input_nodes.shape[0]:,} input nodes)"
        )


@dataclass(frozen=True, eq=False)
class LinkSample:
    """The blocks around the ends of some edges, before their rows are gathered."""

    sample: NeighborSample
    sources: torch.Tensor  # (pairs,) rows of the sample's seeds
    targets: torch.Tensor
    relations: torch.Tensor
    times: torch.Tensor | None
    inputs: torch.Tensor  # which of the loader's edges these are

    @property
    def number(self) -> int:
        """Which batch of the epoch it is."""
        return self.sample.number

    @property
    def input_nodes(self) -> torch.Tensor:
        """Global ids of the nodes whose features the first layer reads."""
        return self.sample.input_nodes
