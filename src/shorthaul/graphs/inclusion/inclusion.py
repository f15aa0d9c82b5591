"""How likely a node is among the inputs of a mini-batch: what decides which rows every rank keeps.

>>> from shorthaul.graphs import RelationalGraph
>>> star = RelationalGraph.from_edges([3, 3, 3], [0, 1, 2])
>>> estimate_inclusion(star, torch.tensor([0, 1, 2]), [1], batch_size=1).tolist()
[0.333..., 0.333..., 0.333..., 0.703...]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shorthaul.errors import SeedRangeError
from shorthaul.graphs.edge_tensors import choose_builder, read_numbers
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.inclusion.target_rows import TargetRows
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import alone_after_fork


@outside_graphs
@alone_after_fork
def estimate_inclusion(
    graph: RelationalGraph,
    seeds: Any = None,
    fan_outs: Sequence[int] = (15, 10, 5),
    batch_size: int = 1024,
) -> torch.Tensor:
    """(nodes,) float64: how likely a batch of drawn seeds reads a node's features.

    What it says is an estimate, for choosing rows that are kept near or packed. The graph may lie on
    disk: memory grows with the nodes, 48 bytes each.

    Args:
        graph: The graph.
        seeds: What batches are drawn from, as global ids; None (default) for all nodes.
        fan_outs: Neighbors per hop, -1 for all (default 15, 10, 5).
        batch_size: Seeds of a batch (default 1024).
    """
    if seeds is None:
        drawn = torch.arange(graph.num_nodes, dtype=torch.int64, device="cpu")
    else:
        drawn = read_numbers(seeds, "seeds")
    wrong = choose_builder(drawn).find_outside(drawn.contiguous(), graph.num_nodes)
    if wrong is not None:
        raise SeedRangeError(int(drawn[wrong]), wrong, graph.num_nodes)
    return estimate_inclusion_of(TargetRows(graph), drawn, fan_outs, batch_size)


def estimate_inclusion_of(
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
