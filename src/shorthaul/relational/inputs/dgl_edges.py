"""Edges of DGL's graphs as tensors that live as long as their graph, and how many each node has."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.relational.inputs.kept_graphs import keep_graph


class PairedInput(NamedTuple):
    """What a layer of DGL's computes on: sources and targets are numbered apart."""

    edges: torch.Tensor  # (2, edges), in the order of the graph's edge ids
    sources: torch.Tensor
    targets: torch.Tensor


def find_edges(graph: Any, relation: tuple[str, str, str] | None = None) -> torch.Tensor:
    """(2, edges) of a DGL graph, or of one of its relations: one tensor for as long as it is unchanged."""

    def make() -> torch.Tensor:
        chosen = {} if relation is None else {"etype": relation}
        return torch.stack([each.long() for each in graph.edges(order="eid", **chosen)])

    # DGL puts another index in a graph that is changed: the index is what is kept for.
    return keep_graph(("dgl edges", relation), [graph], make, getattr(graph, "_graph", None))


def read_paired(graph: Any, feat: Any) -> PairedInput:
    """The edges of a DGL graph, block or `edge_index`, and features of both its sides."""
    is_dgl = hasattr(graph, "canonical_etypes")
    if not is_dgl and not isinstance(graph, torch.Tensor):
        raise LayerArgumentError(
            f"the graph is a {type(graph).__name__}", "pass a DGL graph or block, or edge_index"
        )
    edges = find_edges(graph) if is_dgl else graph
    if not isinstance(feat, torch.Tensor):
        return PairedInput(edges, feat[0], feat[1])
    is_block = is_dgl and graph.is_block
    return PairedInput(edges, feat, feat[: graph.num_dst_nodes()] if is_block else feat)


def count_edges(edges: torch.Tensor, end: int, nodes: int) -> torch.Tensor:
    """(nodes,): how many edges each node has at this end, 0 for sources and 1 for targets."""
    return keep_graph(
        ("degrees", end, nodes), [edges], lambda: torch.bincount(edges[end], minlength=nodes)
    )


def require_incoming(edges: torch.Tensor, num_targets: int) -> None:
    """Raise where a target has no edge, as DGL's layers do unless they are told to allow it."""
    if bool((count_edges(edges, 1, num_targets) == 0).any()):
        raise LayerArgumentError(
            "there are nodes without incoming edges, which hear nothing",
            "add loops with dgl.add_self_loop(g), or make the layer with allow_zero_in_degree=True",
        )
