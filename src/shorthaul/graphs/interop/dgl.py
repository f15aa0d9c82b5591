"""Graphs from and to DGL; DGL is imported only to make one of its own."""

from __future__ import annotations

from typing import Any

import torch

from shorthaul.errors import GraphError, MissingPackageError
from shorthaul.graphs.edge_tensors import as_plain
from shorthaul.graphs.graph import DOORS, RelationalGraph
from shorthaul.graphs.interop.pyg import local_edges
from shorthaul.graphs.relation import EDGE, NODE, Relation

# What DGL calls the types of a graph that has none, and where it keeps a homogeneous graph's.
_NODES, _EDGES, _EDGE_TYPE = "_N", "_E", "_TYPE"


def graph_from_dgl(
    graph: Any, edge_type: Any = None, index_dtype: torch.dtype | None = None
) -> RelationalGraph:
    """The structure of a DGL graph, edges by relation in the order of its own edge ids.

    For a homogeneous graph whose edges have types, as `dgl.to_homogeneous` makes it, `edge_type` is
    the tensor of types, or the name of the edge data that holds them.
    """
    if not hasattr(graph, "canonical_etypes"):
        raise GraphError(f"expected a DGL graph, got {type(graph).__name__}.")
    kinds = [tuple(each) for each in graph.canonical_etypes]
    if len(kinds) == 1 and len(graph.ntypes) == 1:
        if isinstance(edge_type, str):
            edge_type = _edge_data(graph, edge_type)
        source, target = graph.edges(order="eid")
        return RelationalGraph.from_edges(
            source,
            target,
            edge_type,
            num_nodes=graph.num_nodes(),
            relations=None if edge_type is not None else [_named(*kinds[0]).name],
            nodes_per_type={_plain(graph.ntypes[0]): graph.num_nodes()},
            index_dtype=index_dtype,
        )
    if edge_type is not None:
        raise GraphError(
            f"the DGL graph has {len(kinds)} relations of its own, so edge_type must be left out."
        )
    edges: dict[tuple[str, str, str], Any] = {
        _named(*kind): graph.edges(order="eid", etype=kind) for kind in kinds
    }
    counts = {_plain(name): graph.num_nodes(name) for name in graph.ntypes}
    return RelationalGraph.from_typed_edges(edges, counts, index_dtype=index_dtype)


def graph_to_dgl(graph: RelationalGraph) -> Any:
    """A DGL graph: heterogeneous where nodes have types, else with relations as `edata["_TYPE"]`."""
    try:
        import dgl
    except ImportError as error:
        raise MissingPackageError("dgl", "RelationalGraph.to_dgl()") from error
    if len(graph.node_types) == 1:
        made = dgl.graph(
            (as_plain(graph.source), as_plain(graph.target)), num_nodes=graph.num_nodes
        )
        if graph.num_relations > 1:
            made.edata[_EDGE_TYPE] = as_plain(graph.relation)
        return made
    edges = {
        tuple(relation): tuple(edge_index.to(graph.index_dtype))
        for relation, edge_index in local_edges(graph).items()
    }
    counts = dict(zip(graph.node_types, graph.nodes_per_type, strict=True))
    return dgl.heterograph(edges, num_nodes_dict=counts)


def _named(source: str, name: str, target: str) -> Relation:
    return Relation(_plain(source), _plain(name), _plain(target))


def _plain(name: str) -> str:
    return {_NODES: NODE, _EDGES: EDGE}.get(name, name)


def _edge_data(graph: Any, name: str) -> Any:
    if name not in graph.edata:
        known = ", ".join(f"`{each}`" for each in graph.edata) or "none"
        raise GraphError(f"the DGL graph has no edge data `{name}`; it has {known}.")
    return graph.edata[name]


DOORS.update(graph_from_dgl=graph_from_dgl, graph_to_dgl=graph_to_dgl)
