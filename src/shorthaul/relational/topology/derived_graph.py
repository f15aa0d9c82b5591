"""Graphs whose edges are made from those of another graph, and lie where these do."""

from __future__ import annotations

import torch

from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.edge_tensors import choose_index_dtype
from shorthaul.graphs.relation import EDGE, NODE, Relation


def derive_graph(
    source: torch.Tensor,
    target: torch.Tensor,
    relation: torch.Tensor | None = None,
    *,
    num_nodes: int,
    num_relations: int = 1,
) -> RelationalGraph:
    """A graph of edges that are known to be in range: on a GPU, where blocks may lie, too.

    >>> derive_graph(torch.tensor([0, 1]), torch.tensor([1, 1]), num_nodes=2)
    RelationalGraph(2 nodes, 2 edges, 1 relation)
    """
    if relation is None:
        relation = torch.zeros_like(source)
    dtype = choose_index_dtype(None, max(num_nodes, source.shape[0], num_relations))
    one, other, numbers = (each.to(dtype).contiguous() for each in (source, target, relation))
    names = tuple(Relation(NODE, f"{EDGE}_{number}", NODE) for number in range(num_relations))
    return RelationalGraph((NODE,), (num_nodes,), names, one, other, numbers)
