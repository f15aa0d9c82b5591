"""Graphs from and to PyG's `Data` and `HeteroData`; PyG is imported only to make one of its own."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch

from shorthaul.errors import GraphError, MissingExtraError
from shorthaul.graphs.edge_tensors import as_plain, require_range
from shorthaul.graphs.graph import DOORS, RelationalGraph
from shorthaul.graphs.relation import Relation


def graph_from_pyg(data: Any, index_dtype: torch.dtype | None = None) -> RelationalGraph:
    """The structure of a `Data` (with its `edge_type`, if it has one) or a `HeteroData`."""
    if hasattr(data, "edge_types") and hasattr(data, "node_types"):
        return _from_typed(data, index_dtype)
    edge_index = getattr(data, "edge_index", None)
    if edge_index is None:
        raise GraphError(_missing("the data"))
    return RelationalGraph.from_edge_index(
        edge_index,
        getattr(data, "edge_type", None),
        num_nodes=_known_count(data),
        index_dtype=index_dtype,
    )


def graph_to_pyg(graph: RelationalGraph) -> Any:
    """A `Data` where nodes have one type, else a `HeteroData`; edges as int64, in their order."""
    try:
        from torch_geometric.data import Data, HeteroData
    except ImportError as error:
        raise MissingExtraError("torch_geometric", "pyg", "RelationalGraph.to_pyg()") from error
    if len(graph.node_types) == 1:
        edge_index = torch.stack([as_plain(graph.source), as_plain(graph.target)]).long()
        data = Data(edge_index=edge_index, num_nodes=graph.num_nodes)
        if graph.num_relations > 1:
            data.edge_type = as_plain(graph.relation).long()
        return data
    typed = HeteroData()
    for name, count in zip(graph.node_types, graph.nodes_per_type, strict=True):
        typed[name].num_nodes = count
    for relation, edge_index in local_edges(graph).items():
        typed[tuple(relation)].edge_index = edge_index
    return typed


def local_edges(graph: RelationalGraph) -> dict[Relation, torch.Tensor]:
    """Each relation's edges, (2, edges) int64, with ids that count within each node type."""
    index = graph.by_relation()
    bounds = as_plain(index.pointers).tolist()
    sources, targets = as_plain(index.sources).long(), as_plain(index.targets).long()
    return {
        relation: torch.stack(
            [
                count_within_type(graph, relation, end, column[start:stop])
                for end, column in (("source", sources), ("target", targets))
            ]
        )
        for relation, (start, stop) in zip(graph.relations, itertools.pairwise(bounds), strict=True)
    }


def count_within_type(
    graph: RelationalGraph, relation: Relation, end: str, nodes: torch.Tensor
) -> torch.Tensor:
    """Global ids of nodes at one end of `relation` as ids within their type.

    The edges of a graph that lies on disk were never looked at as a whole: one that does not join
    the types that its relation names is an error here.
    """
    kind = relation.source_type if end == "source" else relation.target_type
    own = graph.nodes_of(kind)
    local = nodes - own.start
    require_range(local, len(own), f"{end} (in `{relation}`)", f"nodes of `{kind}`")
    return local


def _from_typed(data: Any, index_dtype: torch.dtype | None) -> RelationalGraph:
    edges: dict[tuple[str, str, str], Any] = {}
    for relation in data.edge_types:
        edge_index = getattr(data[relation], "edge_index", None)
        if edge_index is None:
            raise GraphError(_missing(f"relation `{' '.join(relation)}`"))
        edges[relation] = edge_index
    # A type may be known from edges alone. Asking for its store would make one in the user's data.
    known = {name: _known_count(data[name]) for name in data.node_types}
    names = [*known, *(kind for source, _, target in edges for kind in (source, target))]
    counts = {}
    for name in names:
        count = known.get(name)
        counts[name] = _count_seen(edges, name) if count is None else count
    return RelationalGraph.from_typed_edges(edges, counts, index_dtype=index_dtype)


def _count_seen(edges: dict[tuple[str, str, str], Any], name: str) -> int:
    """One more than the largest id that edges give nodes of this type."""
    ends = [
        edge_index[end]
        for (source, _, target), edge_index in edges.items()
        for end, kind in ((0, source), (1, target))
        if kind == name
    ]
    return max((int(each.max()) + 1 for each in ends if each.numel()), default=0)


def _known_count(store: Any) -> int | None:
    """How many nodes the store says it has; None where PyG would have to guess, and warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            count: int | None = getattr(store, "num_nodes", None)
        except UserWarning:
            return None
    return count


def _missing(where: str) -> str:
    return (
        f"{where} has no `edge_index`; shorthaul reads edges from it.\n"
        "  A transposed sparse `adj_t` becomes one by `row, col, _ = adj_t.t().coo()`."
    )


DOORS.update(graph_from_pyg=graph_from_pyg, graph_to_pyg=graph_to_pyg)
