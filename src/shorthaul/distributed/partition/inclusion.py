"""How likely a node is among the inputs of a mini-batch: what decides which rows every rank keeps.

>>> from shorthaul.graphs import RelationalGraph
>>> star = TargetRows(RelationalGraph.from_edges([3, 3, 3], [0, 1, 2]))
>>> estimate_inclusion(star, torch.tensor([0, 1, 2]), [1], batch_size=1).tolist()
[0.333..., 0.333..., 0.333..., 0.703...]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shorthaul.distributed.partition.target_rows import TargetRows


def estimate_inclusion(
    rows: TargetRows, seeds: torch.Tensor, fan_outs: Sequence[int], batch_size: int
) -> torch.Tensor:
    """(nodes,) float64: the probability that a batch of drawn seeds reads a node's features.

    Hop by hop, a target that is known with probability q and has d neighbors, of which f are drawn,
    reaches each with q * min(1, f / d); what reaches a node is taken to be independent. Every hop
    draws anew for all that is known, as `NeighborSampler` does.
    """
    nodes = rows.graph.num_nodes
    reached = torch.zeros(nodes, dtype=torch.float64, device="cpu")
    if len(seeds):
        reached[seeds.long()] = min(1.0, batch_size / len(seeds))
    missed = -reached  # log1p of it: the logarithm of never having been reached
    missed = torch.log1p(missed.clamp_(min=-1.0 + 1e-15))
    degrees = rows.pointers.diff().double()
    for fan_out in fan_outs:
        share = (
            torch.ones_like(degrees)
            if fan_out < 0
            else (fan_out / degrees.clamp(min=1)).clamp_(max=1)
        )
        asks = torch.log1p(-(-torch.expm1(missed) * share).clamp_(max=1.0 - 1e-15))
        passed = torch.zeros_like(missed)
        for piece in rows.pieces():
            counts = piece.pointers.diff()
            own = asks[piece.first : piece.first + len(counts)]
            passed.index_add_(0, piece.sources.long(), torch.repeat_interleave(own, counts))
        missed += passed
    return -torch.expm1(missed)
