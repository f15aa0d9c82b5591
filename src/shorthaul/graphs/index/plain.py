"""The same indexes in plain PyTorch: the oracle of the kernels, and the way without a compiler or on a GPU."""

from __future__ import annotations

import torch

from shorthaul.graphs.index.kernels import PairColumns, RelationColumns, RowColumns


def sort_relations(
    relation: torch.Tensor, source: torch.Tensor, target: torch.Tensor, relations: int
) -> RelationColumns:
    """Edges by relation, in the order given."""
    edges = torch.argsort(relation, stable=True)
    pointers = _count_before(relation, relations)
    return RelationColumns(pointers, edges.to(relation.dtype), source[edges], target[edges])


def sort_rows(
    keys: torch.Tensor,
    ends: torch.Tensor,
    edges: torch.Tensor,
    relation_pointers: torch.Tensor,
    rows: int,
) -> RowColumns:
    """Edges that come by relation (`keys`, `ends` and ids of each), by key."""
    relation = _row_numbers(relation_pointers)
    order = torch.argsort(keys, stable=True)
    return RowColumns(_count_before(keys, rows), ends[order], relation[order], edges[order])


def find_pairs(
    row_pointers: torch.Tensor,
    relations: torch.Tensor,
    edges: torch.Tensor,
    relation_pointers: torch.Tensor,
) -> PairColumns:
    """The distinct (relation, row) pairs of edges that come by row, then by relation."""
    order = torch.argsort(relations, stable=True)
    node, kind, pair_edges = _row_numbers(row_pointers)[order], relations[order], edges[order]
    begins = torch.ones(edges.numel(), dtype=torch.bool, device=edges.device)
    begins[1:] = (node[1:] != node[:-1]) | (kind[1:] != kind[:-1])
    edge_to_pair = torch.empty_like(edges)
    edge_to_pair[pair_edges.long()] = (torch.cumsum(begins, 0) - 1).to(edges.dtype)
    firsts = torch.cat(
        [
            torch.nonzero(begins)[:, 0],
            torch.tensor([edges.numel()], dtype=torch.int64, device=edges.device),
        ]
    )
    pointers = _count_before(kind[begins], relation_pointers.numel() - 1)
    return PairColumns(pointers, node[begins], edge_to_pair, firsts.to(edges.dtype), pair_edges)


def find_outside(values: torch.Tensor, limit: int) -> int | None:
    """The first position whose value is not in `range(limit)`."""
    outside = torch.nonzero((values < 0) | (values >= limit))
    return int(outside[0]) if outside.numel() else None


def _count_before(keys: torch.Tensor, rows: int) -> torch.Tensor:
    counts = torch.bincount(keys, minlength=rows)
    return torch.cat([counts.new_zeros(1), torch.cumsum(counts, 0)]).to(keys.dtype)


def _row_numbers(pointers: torch.Tensor) -> torch.Tensor:
    """The row of each item, from where the rows begin."""
    rows = torch.arange(pointers.numel() - 1, dtype=pointers.dtype, device=pointers.device)
    return torch.repeat_interleave(rows, pointers.diff())
