"""The same indexes in plain PyTorch: the oracle of the kernels, and the way without a compiler."""

from __future__ import annotations

import torch

from shorthaul.graphs.index_kernels import Pairs, Rows


def sort_edges(
    keys: torch.Tensor, rows: int, order: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each key's edges begin, and the edges (of `order`, else all) by key, stable."""
    taken = keys if order is None else keys[order.long()]
    positions = torch.argsort(taken, stable=True)
    edges = positions if order is None else order[positions]
    return _pointers(keys, rows), edges.to(keys.dtype)


def sort_rows(
    keys: torch.Tensor,
    other_ends: torch.Tensor,
    relation: torch.Tensor,
    rows: int,
    order: torch.Tensor | None,
) -> Rows:
    """Edges by key, each with its other end and its relation; within a row as in `order`."""
    pointers, edges = sort_edges(keys, rows, order)
    positions = edges.long()
    return Rows(pointers, other_ends[positions], relation[positions], edges)


def find_pairs(
    nodes: torch.Tensor,
    relation: torch.Tensor,
    sorted_edges: torch.Tensor,
    relation_pointers: torch.Tensor,
) -> Pairs:
    """The distinct pairs of edges that are sorted by relation, then by node."""
    positions = sorted_edges.long()
    node, kind = nodes[positions], relation[positions]
    begins = torch.ones(nodes.numel(), dtype=torch.bool)
    begins[1:] = (node[1:] != node[:-1]) | (kind[1:] != kind[:-1])
    edge_to_pair = torch.empty_like(nodes)
    edge_to_pair[positions] = (torch.cumsum(begins, 0) - 1).to(nodes.dtype)
    relations = relation_pointers.numel() - 1
    firsts = torch.nonzero(begins)[:, 0]
    ends = torch.tensor([nodes.numel()])
    return Pairs(
        _pointers(kind[begins], relations),
        node[begins],
        edge_to_pair,
        torch.cat([firsts, ends]).to(nodes.dtype),
    )


def find_outside(values: torch.Tensor, limit: int) -> int | None:
    """The first position whose value is not in `range(limit)`."""
    outside = torch.nonzero((values < 0) | (values >= limit))
    return int(outside[0]) if outside.numel() else None


def _pointers(keys: torch.Tensor, rows: int) -> torch.Tensor:
    counts = torch.bincount(keys, minlength=rows)
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(counts, 0)]).to(keys.dtype)
