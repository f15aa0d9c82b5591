"""The graph on which a rank runs a layer: its own targets, their edges, and sources in local rows.

Rows begin with a rank's own nodes; those that other ranks send follow. A layer of one tensor has all
types in it and takes a `Block`; one of a tensor for each type takes the edges of each relation.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from shorthaul.distributed.whole_graph.halo_plan import HaloPlan
from shorthaul.distributed.whole_graph.own_rows import OwnEdges, OwnRows
from shorthaul.graphs import Block, RelationalGraph

Types = tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class TypedEdges:
    """The edges that own targets hear through, for layers with a tensor for each type."""

    edge_index: Mapping[Types, torch.Tensor]  # (2, edges) for each relation, also for empty ones
    own: Mapping[str, int]  # rows of each type that this rank owns: the first ones


def make_block(edges: OwnEdges, own: OwnRows, plan: HaloPlan) -> Block:
    """All types in one tensor; an average that another rank sends is source node -1."""
    start = own.count
    nodes = torch.full((start + sum(plan.counts),), -1, dtype=torch.int64, device="cpu")
    nodes[:start] = own.ids()
    for each, rows, averages in zip(
        torch.split(plan.ids, plan.rows), plan.rows, plan.averages, strict=True
    ):
        nodes[start : start + rows] = each
        start += rows + averages
    index = edges.index
    dtype = index.sources.dtype
    positions = torch.arange(len(index.sources), dtype=dtype, device="cpu")
    return Block(
        nodes.to(dtype), own.count, index.pointers, plan.places.to(dtype), positions, index
    )


def make_typed_edges(
    graph: RelationalGraph,
    edges: OwnEdges,
    own: Mapping[str, OwnRows],
    plans: Mapping[str, HaloPlan],
) -> TypedEdges:
    """A tensor for each type; a plan is that of the edges whose sources are of its type."""
    counts = {name: each.count for name, each in own.items()}
    first = dict(zip(counts, itertools.accumulate(counts.values(), initial=0), strict=False))
    index = edges.index
    places = torch.empty(len(index.sources), dtype=torch.int64, device="cpu")
    for name, plan in plans.items():
        places[is_of(index.sources, graph.nodes_of(name))] = plan.places
    made = {}
    for number, (source, name, target) in enumerate(graph.relations):
        is_here = index.relations == number
        targets = edges.targets[is_here] - first[target]
        made[source, name, target] = torch.stack([places[is_here], targets])
    return TypedEdges(made, counts)


def is_of(ids: torch.Tensor, nodes: range) -> torch.Tensor:
    """Which global ids are within a type's."""
    return (ids >= nodes.start) & (ids < nodes.stop)
