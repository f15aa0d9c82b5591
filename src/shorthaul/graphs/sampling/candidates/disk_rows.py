"""The rows of an index that a hop of sampling needs, read from disk in one request for all of them.

>>> import torch
>>> from shorthaul.graphs import RelationalGraph
>>> graph = RelationalGraph.from_edges([1, 2, 3, 4, 4], [0, 0, 0, 1, 2], [0, 0, 1, 1, 0])
>>> rows = read_rows(graph, Rule(), torch.tensor([2, 0], dtype=torch.int32), by_relation=True)
>>> rows.ends.tolist(), rows.relations.tolist(), rows.row_starts.tolist()
([4, 5, 0, 3], [0, 0, 0, 1], [0, 1, 4])
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.sampling.candidates.arranging import Arranged, arrange_rows
from shorthaul.graphs.sampling.candidates.rules import Rule


class HopRows(NamedTuple):
    """Where the targets' neighbors lie in the index, and what is known of them where that is asked for."""

    ends: torch.Tensor  # (2 T,) begin and end of each row
    relations: torch.Tensor | None  # of all rows, one after the other
    row_starts: torch.Tensor | None  # (T + 1,) where each row's part of the others begins
    order: torch.Tensor | None = None
    times: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    cumulative: torch.Tensor | None = None
    sources: torch.Tensor | None = None


def read_rows(
    graph: RelationalGraph, rule: Rule, nodes: torch.Tensor, *, by_relation: bool
) -> HopRows:
    """The rows of `nodes`: a pair of numbers each, and what the rule looks at."""
    index = graph.by_target()
    ends = index.pointers[torch.stack([nodes, nodes + 1], dim=1).flatten()]
    if rule.is_plain and not by_relation:
        return HopRows(ends, None, None)
    pairs = ends.view(-1, 2).long()
    row_starts = torch.zeros(len(nodes) + 1, dtype=torch.int64, device="cpu")
    degrees = pairs[:, 1] - pairs[:, 0]
    torch.cumsum(degrees, 0, out=row_starts[1:])
    shifts = torch.repeat_interleave(pairs[:, 0] - row_starts[:-1], degrees)
    positions = torch.arange(len(shifts), dtype=torch.int64, device="cpu") + shifts
    relations = index.relations[positions] if by_relation else None
    needs_edges = rule.weights is not None or rule.edge_times is not None
    needs_sources = rule.node_times is not None or rule.strategy == "labor"
    nothing = nodes[:0]
    edges = index.edges[positions] if needs_edges else nothing
    sources = index.sources[positions] if needs_sources else nothing
    arranged = Arranged()
    if rule.is_temporal or rule.weights is not None:
        arranged = arrange_rows(
            row_starts,
            graph.index_dtype,
            relations=relations,
            times=rule.find_times(edges, sources) if rule.is_temporal else None,
            weights=None if rule.weights is None else rule.find_weights(edges),
        )
    return HopRows(ends, relations, row_starts, *arranged, sources if needs_sources else None)
