"""Nodes and edges of a sample by their types, with ids that count within each, as PyG has them."""

from __future__ import annotations

from typing import Any

import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs.attached_data import count_within_relation
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.sampling.blocks import NeighborSample

EdgeType = tuple[str, ...]


def sort_nodes(
    graph: RelationalGraph, nodes: torch.Tensor
) -> tuple[dict[str, tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    """Of each type: its nodes, and which of all they are; the place of every node in its type.

    >>> graph = RelationalGraph.from_typed_edges({("a", "to", "b"): torch.tensor([[1], [1]])})
    >>> of_types, local = sort_nodes(graph, torch.tensor([3, 0, 2]))
    >>> {kind: ids.tolist() for kind, (ids, _) in of_types.items()}, local.tolist()
    ({'a': [0], 'b': [1, 0]}, [0, 0, 1])
    """
    found = {}
    local = torch.empty_like(nodes)
    for kind in graph.node_types:
        own = graph.nodes_of(kind)
        is_own = (nodes >= own.start) & (nodes < own.stop)
        found[kind] = nodes[is_own] - own.start, is_own
        local[is_own] = torch.arange(int(is_own.sum()), dtype=torch.int64, device="cpu")
    return found, local


def sort_edges(
    graph: RelationalGraph, edges: torch.Tensor, relations: torch.Tensor
) -> dict[EdgeType, tuple[torch.Tensor, torch.Tensor]]:
    """Of each relation: which of the edges are its own, and their ids within it."""
    found: dict[EdgeType, Any] = {}
    for number, relation in enumerate(graph.relations):
        is_own = relations == number
        found[tuple(relation)] = is_own, count_within_relation(graph, edges[is_own], number)
    return found


def require_distinct(sample: NeighborSample, seeds: torch.Tensor, remedy: str) -> None:
    """Raise where seeds were given more than once."""
    if sample.seeds.shape[0] != seeds.shape[0]:
        raise SamplingError(
            f"{seeds.shape[0]:,} seeds of a batch are {sample.seeds.shape[0]:,} nodes: some come more "
            f"than once, and PyG's batches have a row for each.\n  {remedy}"
        )
