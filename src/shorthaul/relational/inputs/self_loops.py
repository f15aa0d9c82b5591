"""Edges with one loop at every node, as attention over a node's neighbors and itself wants them."""

from __future__ import annotations

from typing import Any

import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import RelationalGraph
from shorthaul.relational.inputs.kept_graphs import keep_graph
from shorthaul.relational.runtime.traced_graph import TracedGraph, trace_graph
from shorthaul.relational.topology.derived_graph import derive_graph

_REDUCTIONS = {"add": "sum", "sum": "sum", "mean": "mean", "min": "amin", "max": "amax"}
FILLS = (*_REDUCTIONS, "mul")

Fill = float | torch.Tensor | str


def require_fill(fill: Fill) -> None:
    """Raise unless `fill` says what a loop's edge features are."""
    if isinstance(fill, str) and fill not in FILLS:
        raise LayerArgumentError(
            f"fill_value is {fill!r}", f"it is a number, a tensor, or one of {', '.join(FILLS)}"
        )


def add_loops(graph: Any, count: int, num_targets: int | None) -> Any:
    """`graph`, of one relation, with exactly one loop at each of its first `count` nodes, after the
    other edges. While a model is traced it is a promise of that graph: see `build_looped`.
    """
    if torch.compiler.is_compiling():
        traced = trace_graph(graph, num_targets, 1)
        return TracedGraph(
            f"{traced.form} with loops",
            traced.tensors,
            (traced.num_nodes, count),
            traced.relations,
            traced.num_edges,
            traced.num_targets,
        )

    def make() -> RelationalGraph:
        source, target = replace_loops(edges_of(graph), count)
        return derive_graph(source, target, num_nodes=graph.num_nodes)

    return keep_graph(("loops", count), [graph], make)


def edges_of(graph: Any, device: torch.device | None = None) -> torch.Tensor:
    """(2, edges), in the order in which the edges were given; where they lie, or on `device`."""
    edges = torch.stack([graph.source, graph.target])
    return edges if device is None else edges.to(device)


def replace_loops(edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """Loops taken out, then one put at every node, at the end: (2, edges left + nodes)."""
    kept = edge_index[:, edge_index[0] != edge_index[1]]
    loops = torch.arange(num_nodes, dtype=edge_index.dtype, device=edge_index.device)
    return torch.cat([kept, loops.expand(2, num_nodes)], 1)


def replace_loop_features(
    edge_index: torch.Tensor, features: torch.Tensor, num_nodes: int, fill: Fill
) -> torch.Tensor:
    """The rows of `features` for the edges of `replace_loops`; `fill` makes those of the loops.

    A number or a tensor stands in every row. "mean" and the others reduce the features of the edges
    that come to each node, other than loops; where there are none it is 0, for "mul" 1.
    """
    kept = edge_index[0] != edge_index[1]
    features, targets = features[kept], edge_index[1, kept].long()
    shape = num_nodes, features.shape[1]
    if isinstance(fill, torch.Tensor):
        row = fill.to(features.dtype).reshape(1, -1)
        if row.shape[1] not in (1, shape[1]):
            raise LayerArgumentError(
                f"fill_value has {row.shape[1]} numbers, edges have {shape[1]}",
                "give one number per edge feature",
            )
        loops = row.expand(shape)
    elif not isinstance(fill, str):
        loops = features.new_full(shape, float(fill))
    else:
        # Only nodes with a loop are asked for, but in a bipartite graph edges reach others too.
        reach = max(num_nodes, int(targets.max()) + 1 if targets.numel() else 0)
        start = features.new_ones if fill == "mul" else features.new_zeros
        loops = start(reach, shape[1]).scatter_reduce(
            0,
            targets.unsqueeze(1).expand_as(features),
            features,
            _REDUCTIONS.get(fill, "prod"),
            include_self=fill == "mul",
        )[:num_nodes]
    return torch.cat([features, loops])


def fill_loops(
    graph: Any, features: torch.Tensor | None, loops: int, fill: Fill
) -> torch.Tensor | None:
    """The edge features of `add_loops(graph, loops, ...)`, of the features of the graph's edges."""
    if features is None:
        return None
    if graph.num_edges != features.shape[0]:
        raise LayerArgumentError(
            f"edge_attr has {features.shape[0]:,} rows, but there are {graph.num_edges:,} edges",
            "give one row per edge",
        )
    return replace_loop_features(edges_of(graph, features.device), features, loops, fill)
