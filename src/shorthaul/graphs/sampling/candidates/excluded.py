"""Edges that a sample must not use -> their positions in the index by target.

>>> graph = RelationalGraph.from_edges([1, 2, 0], [0, 0, 1])
>>> find_positions(graph, [2, 0]).tolist()  # the first of row 0, and the only one of row 1
[0, 2]
"""

from __future__ import annotations

from typing import Any

import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs.edge_tensors import read_numbers
from shorthaul.graphs.graph import RelationalGraph


def find_positions(graph: RelationalGraph, edges: Any) -> torch.Tensor:
    """Positions, ascending and each once; bisection in each edge's row, for all edges together."""
    ids = read_edge_ids(graph, edges, "exclude")
    index = graph.by_target()
    relations, targets = graph.relation[ids].long(), graph.target[ids].long()
    ends = index.pointers[torch.stack([targets, targets + 1], dim=1).flatten()].long().view(-1, 2)
    low, high = ends[:, 0].clone(), ends[:, 1].clone()
    while True:
        is_open = low < high
        if not bool(is_open.any()):
            break
        # A row is sorted by relation; edges of one relation stay in the order of their ids.
        middle = torch.where(is_open, (low + high) // 2, ends[:, 0])
        found, numbers = index.relations[middle].long(), index.edges[middle].long()
        is_less = (found < relations) | ((found == relations) & (numbers < ids))
        low = torch.where(is_open & is_less, middle + 1, low)
        high = torch.where(is_open & ~is_less, middle, high)
    positions: torch.Tensor = torch.unique(low).to(graph.index_dtype)
    return positions


def read_edge_ids(graph: RelationalGraph, edges: Any, name: str) -> torch.Tensor:
    """Edge ids as int64; `SamplingError` names one that no edge has."""
    ids = read_numbers(edges, name).long()
    wrong = torch.nonzero((ids < 0) | (ids >= graph.num_edges))
    if wrong.numel():
        at = int(wrong[0])
        raise SamplingError(
            f"`{name}` names edge {int(ids[at]):,} at position {at:,}, but the graph has "
            f"{graph.num_edges:,}, numbered from 0."
        )
    return ids
