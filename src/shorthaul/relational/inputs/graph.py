"""Whatever people call a graph, as a `RelationalGraph`: built once for the same objects.

========================  ==========================================================================
`RelationalGraph`         as it is
`edge_index`              PyG's (2, edges), with `edge_type`, and a pair of features where sources and
                          targets are apart
`adj_t`                   transposed and sparse, of torch or torch_sparse; its values are relations
`Block`                   a sampled layer of `shorthaul.graphs`; its targets come first
DGL graph or block        relations as a tensor, in the order of its edge ids, or its own
========================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import Block, RelationalGraph
from shorthaul.graphs.edge_tensors import require_range
from shorthaul.relational.inputs.kept_graphs import keep_graph
from shorthaul.relational.runtime.arguments import read_features
from shorthaul.relational.runtime.traced_graph import TracedGraph, find_ends, trace_block
from shorthaul.relational.topology.block_graph import graph_of_block

__all__ = [
    "LayerInput",
    "find_graph",
    "find_typed_graph",
    "glorot",
    "keep_graph",
    "read_edge_features",
    "read_input",
    "require_one_set",
    "require_widths",
]


class LayerInput(NamedTuple):
    """What a layer computes on."""

    graph: RelationalGraph
    sources: torch.Tensor  # a row per node of the graph
    targets: torch.Tensor | None  # where they are apart; None: the first rows of `sources`
    num_targets: int | None  # None: every node is one


class _Found(NamedTuple):
    graph: RelationalGraph
    num_targets: int | None


def glorot(parameter: torch.Tensor) -> None:
    """Uniform within sqrt(6 / the sum of the last two sizes)."""
    limit = (6.0 / (parameter.shape[-2] + parameter.shape[-1])) ** 0.5
    nn.init.uniform_(parameter, -limit, limit)


def require_widths(in_channels: Any) -> None:
    """Raise if a width is to be found at the first call, as PyG's -1 asks."""
    widths = (in_channels,) if isinstance(in_channels, int) else tuple(in_channels)
    if min(widths) < 0:
        raise LayerArgumentError(f"in_channels is {in_channels}", "give the width of x")


def read_edge_features(given: torch.Tensor | None, edge_dim: int | None) -> torch.Tensor | None:
    """(edges, edge_dim) of what a layer made with `edge_dim` is given; one number per edge is a row of one."""
    if edge_dim is None and given is None:
        return None
    if given is None:
        raise LayerArgumentError(f"the layer was made with edge_dim={edge_dim}", "pass edge_attr")
    rows = given.unsqueeze(1) if given.dim() == 1 else given.flatten(1)
    if edge_dim is None:
        raise LayerArgumentError(
            "edge_attr was given to a layer without edge features",
            f"make the layer with edge_dim={rows.shape[1]}",
        )
    return rows


def read_input(
    x: Any,
    edges: Any,
    edge_type: Any,
    num_relations: int,
    size: tuple[int, int] | None = None,
) -> LayerInput:
    """The graph of `edges` in any form, with features of all nodes, or of (sources, targets).

    Sources and targets that are apart have ids of their own, from 0 on. The graph has as many nodes
    as the larger side, so that no features are copied, and its targets are the first of them. `size`
    counts both, and is needed for nothing but targets without features.
    """
    if isinstance(x, torch.Tensor):
        # With a block, a unified tensor is the table of the whole graph.
        x = read_features(x, edges.source_nodes if isinstance(edges, Block) else None)
        found = _find(edges, edge_type, x.shape[0], num_relations)
        _require_size(size, x.shape[0], found.num_targets or x.shape[0])
        return LayerInput(found.graph, x, None, found.num_targets)
    source, target = x
    if isinstance(edges, RelationalGraph):
        raise LayerArgumentError(
            "a pair of features was given with a RelationalGraph, which numbers all nodes alike",
            "pass edge_index, or one tensor of features",
        )
    if target is not None:
        num_targets = target.shape[0]
    else:  # PyG takes them to be as many as sources
        num_targets = source.shape[0] if size is None else size[1]
    counts = source.shape[0], num_targets
    _require_size(size, *counts)
    if isinstance(edges, Block) or _is_dgl(edges):  # the targets are the first sources
        found = _find(edges, edge_type, counts[0], num_relations)
        _require_size((counts[0], found.num_targets or counts[0]), *counts)
    else:
        found = _Found(find_bipartite_graph(edges, edge_type, *counts, num_relations), counts[1])
    missing = found.graph.num_nodes - counts[0]
    if missing > 0:
        source = nn.functional.pad(source, (0, 0, 0, missing))
    return LayerInput(found.graph, source, target, found.num_targets)


def require_one_set(x: Any, layer: nn.Module) -> None:
    """Raise if `x` is a pair of features, of sources and of targets, which `layer` does not take."""
    if isinstance(x, tuple | list):
        raise LayerArgumentError(
            f"a pair of features was given to {type(layer).__name__}, which takes one set of nodes",
            "pass one tensor with a row per node; those of a block begin with its targets",
        )


def _require_size(size: tuple[int, int] | None, num_sources: int, num_targets: int) -> None:
    if size is not None and tuple(size) != (num_sources, num_targets):
        raise LayerArgumentError(
            f"there are features of {num_sources:,} sources and {num_targets:,} targets, but the "
            f"graph has {size[0]:,} and {size[1]:,}",
            "give one row of features per node",
        )


def find_graph(
    edges: Any, edge_type: torch.Tensor | None, num_nodes: int, num_relations: int
) -> RelationalGraph:
    """The graph of `edges` in any form but a block's, kept while the caller's objects live unchanged."""
    found = _find(edges, edge_type, num_nodes, num_relations)
    if found.num_targets is not None:
        raise LayerArgumentError(
            f"a block of {found.num_targets:,} targets was given to a layer for whole graphs",
            "pass the graph of the block's edges: `block.edge_index()`",
        )
    return found.graph


def find_typed_graph(
    edges: Mapping[tuple[str, str, str], torch.Tensor],
    nodes_per_type: Mapping[str, int],
    relations: tuple[tuple[str, str, str], ...],
) -> RelationalGraph:
    """The graph of one `edge_index` per relation; relations that are not given have no edges."""
    if torch.compiler.is_compiling():
        return _trace_typed(edges, nodes_per_type, relations)
    given = tuple(each for each in relations if each in edges)
    empty = torch.empty(2, 0, dtype=torch.int64, device="cpu")

    def make() -> RelationalGraph:
        return RelationalGraph.from_typed_edges(
            {each: _on_host(_as_edge_index(edges.get(each, empty))[0]) for each in relations},
            nodes_per_type,
        )

    facts = ("typed", tuple(nodes_per_type.items()), relations, given)
    return keep_graph(facts, [edges[each] for each in given], make)


def _find(edges: Any, edge_type: Any, num_nodes: int, num_relations: int) -> _Found:
    if isinstance(edges, RelationalGraph):
        return _Found(edges, None)
    if isinstance(edges, Block):
        if torch.compiler.is_compiling():
            traced: Any = trace_block(edges, num_relations)
            return _Found(traced, edges.num_targets)
        return _Found(graph_of_block(edges, num_relations), edges.num_targets)
    if _is_dgl(edges):
        return _find_dgl(edges, edge_type, num_relations)
    if torch.compiler.is_compiling():
        return _Found(_trace_edges("edges", edges, edge_type, num_nodes, num_relations), None)

    def make() -> RelationalGraph:
        edge_index, relation = _read_edges(edges, edge_type, num_relations)
        return RelationalGraph.from_edge_index(
            edge_index, relation, num_nodes=num_nodes, num_relations=num_relations
        )

    facts = ("edges", num_nodes, num_relations)
    return _Found(keep_graph(facts, _owners(edges, edge_type), make), None)


def find_bipartite_graph(
    edges: Any, edge_type: Any, num_sources: int, num_targets: int, num_relations: int
) -> RelationalGraph:
    """The graph of edges whose sources and targets are numbered apart; targets are its first nodes."""
    if torch.compiler.is_compiling():
        return _trace_edges(
            "bipartite", edges, edge_type, max(num_sources, num_targets), num_relations
        )

    def make() -> RelationalGraph:
        edge_index, relation = _read_edges(edges, edge_type, num_relations)
        graph = RelationalGraph.from_edge_index(
            edge_index,
            relation,
            num_nodes=max(num_sources, num_targets),
            num_relations=num_relations,
        )
        require_range(graph.source, num_sources, "source", "source nodes")
        require_range(graph.target, num_targets, "target", "target nodes")
        return graph

    facts = ("bipartite", num_sources, num_targets, num_relations)
    return keep_graph(facts, _owners(edges, edge_type), make)


def _trace_edges(form: str, edges: Any, edge_type: Any, num_nodes: int, num_relations: int) -> Any:
    """What stands for the graph while `torch.compile` or `torch.export` trace a model."""
    if not isinstance(edges, torch.Tensor) or edges.layout is not torch.strided:
        raise LayerArgumentError(
            f"edges are a {type(edges).__name__}, which torch.compile cannot trace",
            "pass edge_index, a RelationalGraph or a Block",
        )
    _require_relations(edge_type, num_relations)
    tensors = [edges] if edge_type is None else [edges, edge_type]
    relations = tuple(range(num_relations))
    return TracedGraph(form, tensors, (num_nodes,), relations, edges.shape[1], num_nodes)


def _trace_typed(edges: Any, nodes_per_type: Mapping[str, int], relations: Any) -> Any:
    empty = torch.empty(2, 0, dtype=torch.int64, device="cpu")
    tensors = [edges.get(each, empty) for each in relations]
    counts = tuple(nodes_per_type.values())
    num_edges = sum([each.shape[1] for each in tensors])
    ends = find_ends(relations, tuple(nodes_per_type))
    return TracedGraph("typed", tensors, counts, relations, num_edges, sum(counts), ends)


def _find_dgl(edges: Any, edge_type: Any, num_relations: int) -> _Found:
    """DGL puts another index in a graph that is changed: the index is what is kept for."""
    if edge_type is not None and not isinstance(edge_type, torch.Tensor):
        edge_type = torch.as_tensor(edge_type, device="cpu")

    def make() -> RelationalGraph:
        if len(edges.canonical_etypes) > 1:
            return RelationalGraph.from_dgl(edges, edge_type)
        _require_relations(edge_type, num_relations)
        source, target = edges.edges(order="eid")
        return RelationalGraph.from_edges(
            source,
            target,
            edge_type,
            num_nodes=edges.num_src_nodes(),
            num_relations=num_relations,
        )

    owners = [edges] if edge_type is None else [edges, edge_type]
    graph = keep_graph(("dgl", num_relations), owners, make, getattr(edges, "_graph", None))
    return _Found(graph, edges.num_dst_nodes() if edges.is_block else None)


def _is_dgl(edges: Any) -> bool:
    return hasattr(edges, "canonical_etypes")


def _owners(edges: Any, edge_type: Any) -> list[Any]:
    given = list(edges) if isinstance(edges, tuple | list) else [edges]
    return given if edge_type is None else [*given, edge_type]


def _read_edges(edges: Any, edge_type: Any, num_relations: int) -> tuple[Any, Any]:
    edge_index, values = _as_edge_index(edges)
    relation = values if edge_type is None else edge_type
    _require_relations(relation, num_relations)
    is_untyped = edge_type is None and num_relations == 1
    return _on_host(edge_index), None if is_untyped else _on_host(relation)


def _on_host(edges: Any) -> Any:
    """The same in memory: the CPU builds indexes, also of a model whose edges are on a GPU."""
    return edges.cpu() if isinstance(edges, torch.Tensor) and edges.is_cuda else edges


def _require_relations(relation: Any, num_relations: int) -> None:
    if relation is None and num_relations > 1:
        raise LayerArgumentError(
            f"the layer has {num_relations} relations, but edges came without theirs",
            "pass edge_type, one number per edge",
        )


def _as_edge_index(edges: Any) -> tuple[Any, torch.Tensor | None]:
    """(2, edges) of sources and targets, and values of edges where a sparse `adj_t` has them."""
    edge_index, values = split_adjacency(edges)
    if isinstance(edges, torch.Tensor) and values is not None:
        return edge_index, _require_relation_values(values)
    return edge_index, values


def split_adjacency(edges: Any) -> tuple[Any, torch.Tensor | None]:
    """(2, edges) of sources and targets, and the values of a sparse `adj_t`; other edges as they are."""
    if isinstance(edges, torch.Tensor):
        if edges.layout is torch.strided:
            return edges, None
        # Not coalesced: an edge may be there twice.
        sparse: torch.Tensor = edges.to_sparse(layout=torch.sparse_coo)
        target, source = sparse._indices()
        # Only those of coalesced ones are differentiable.
        values = sparse.values() if sparse.is_coalesced() else sparse._values()
        return torch.stack([source, target]), values
    if hasattr(edges, "coo"):  # torch_sparse's, which is not imported here
        target, source, value = edges.coo()
        return torch.stack([source, target]), value
    return edges, None


def _require_relation_values(values: torch.Tensor) -> torch.Tensor | None:
    if not values.is_floating_point():
        return values
    if not bool((values == 1).all()):
        raise LayerArgumentError(
            "the sparse adjacency has weights other than 1, which the layer does not take",
            "pass edge_index; whole numbers as values are relations",
        )
    return None
