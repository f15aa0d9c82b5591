"""The ways to cut a graph: ranges in the given order, METIS, or a stream.

| method   | cuts        | memory                      | good for                                         |
| -------- | ----------- | --------------------------- | ------------------------------------------------ |
| `range`  | anything    | nothing                     | ids that are in an order that means something    |
| `metis`  | fewest      | all edges, several times    | graphs that fit in memory; the extra `partition` |
| `stream` | fewer       | some numbers for each node  | graphs that do not                               |

All balance the weight of nodes: the bytes of their features, and seeds that are trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch

from shorthaul.distributed.partition.streaming import place_by_stream
from shorthaul.errors import MissingExtraError, PartitionError
from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.edge_tensors import as_plain
from shorthaul.graphs.inclusion.target_rows import TargetRows

Method = Literal["range", "metis", "stream"]
METHODS: tuple[Method, ...] = get_args(Method)
STREAM_PASSES = 3
WEIGHT_UNIT = 256  # the weight of a node that is as heavy as the average


def weigh_nodes(
    graph: RelationalGraph,
    row_bytes: Mapping[str, int],
    seeds: torch.Tensor | None,
) -> torch.Tensor:
    """(nodes,) int64: what a node adds to its part, half by feature bytes and half by seeds.

    >>> graph = RelationalGraph.from_edges([0], [1], num_nodes=4)
    >>> weigh_nodes(graph, {}, torch.tensor([3])).tolist()
    [256, 256, 256, 1280]
    """
    weights = torch.full((graph.num_nodes,), WEIGHT_UNIT, dtype=torch.int64, device="cpu")
    total_bytes = sum(
        row_bytes.get(name, 0) * len(graph.nodes_of(name)) for name in graph.node_types
    )
    if total_bytes:
        for name in graph.node_types:
            of_type = graph.nodes_of(name)
            share = row_bytes.get(name, 0) * graph.num_nodes / total_bytes
            weights[of_type.start : of_type.stop] = max(1, round(WEIGHT_UNIT * share))
    if seeds is not None and len(seeds):
        weights[seeds.long()] += max(1, WEIGHT_UNIT * graph.num_nodes // len(seeds))
    return weights


def place_nodes(
    graph: RelationalGraph,
    parts: int,
    method: str,
    weights: torch.Tensor,
    *,
    passes: int = STREAM_PASSES,
) -> torch.Tensor:
    """(nodes,) int32: the part of each node, by its global id.

    >>> graph = RelationalGraph.from_edges([0, 1], [1, 2], num_nodes=4)
    >>> place_nodes(graph, 2, "range", weigh_nodes(graph, {}, None)).tolist()
    [0, 0, 1, 1]
    """
    if method not in METHODS:
        raise PartitionError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    if isinstance(parts, bool) or not isinstance(parts, int) or not 1 <= parts < 2**15:
        raise PartitionError(f"parts must be a whole number from 1 to {2**15 - 1}, got {parts!r}.")
    if parts > max(1, graph.num_nodes):
        raise PartitionError(f"{graph.num_nodes:,} nodes cannot be cut into {parts:,} parts.")
    if method == "stream":
        return place_by_stream(TargetRows(graph), parts, weights, passes=passes)
    if method == "metis":
        return place_by_metis(graph, parts, weights)
    return place_by_range(graph, parts, weights)


def place_by_range(graph: RelationalGraph, parts: int, weights: torch.Tensor) -> torch.Tensor:
    """Neighbors in the given order, each type cut by itself into pieces of equal weight."""
    places = torch.empty(graph.num_nodes, dtype=torch.int32, device="cpu")
    for name in graph.node_types:
        of_type = graph.nodes_of(name)
        own = weights[of_type.start : of_type.stop]
        before = own.cumsum(0) - own
        total = max(1, int(own.sum()))
        places[of_type.start : of_type.stop] = (before * parts // total).int()
    return places


def place_by_metis(graph: RelationalGraph, parts: int, weights: torch.Tensor) -> torch.Tensor:
    """METIS's k-way cut of the graph without directions; all edges must fit in memory."""
    try:
        import pymetis
    except ImportError as error:
        raise MissingExtraError("pymetis", "partition", "--method metis") from error
    if parts == 1 or graph.num_edges == 0:
        return place_by_range(graph, parts, weights)
    nodes = graph.num_nodes
    source, target = as_plain(graph.source).long(), as_plain(graph.target).long()
    is_loop = source == target
    one, other = source[~is_loop], target[~is_loop]
    keys = torch.unique(torch.cat([one * nodes + other, other * nodes + one]))
    neighbors = keys % nodes
    starts = torch.arange(nodes + 1, dtype=torch.int64, device="cpu") * nodes
    pointers = torch.searchsorted(keys, starts)
    # METIS adds weights up in 32 bits.
    scale = max(1.0, float(weights.sum()) / 2**30)
    whole = (weights / scale).round().long().clamp_(min=1)
    _, places = pymetis.part_graph(
        parts, pymetis.CSRAdjacency(pointers.numpy(), neighbors.numpy()), vweights=whole.tolist()
    )
    return torch.tensor(places, dtype=torch.int32, device="cpu")
