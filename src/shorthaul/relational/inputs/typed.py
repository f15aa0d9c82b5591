"""Features per node type and edges per relation, as one graph with types; what does not fit is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import RelationalGraph
from shorthaul.relational.inputs.graph import find_graph, find_typed_graph

Types = tuple[str, str, str]


class Metadata(NamedTuple):
    """What a layer was made for: PyG's `metadata`."""

    node_types: tuple[str, ...]
    edge_types: tuple[Types, ...]

    @classmethod
    def read(cls, given: Any) -> Metadata:
        """From a pair of lists."""
        return cls(tuple(given[0]), tuple((one, name, other) for one, name, other in given[1]))


class TypedInput(NamedTuple):
    """What a layer with types computes on."""

    x_dict: Mapping[str, torch.Tensor]  # in the order of the graph's node types
    graph: RelationalGraph


def divide_by_heads(out_channels: int, heads: int) -> int:
    """The width of one head."""
    if out_channels % heads:
        raise LayerArgumentError(
            f"{heads} heads do not divide the width {out_channels}",
            "choose heads that divide out_channels",
        )
    return out_channels // heads


def read_widths(in_channels: int | Mapping[str, int], metadata: Metadata) -> dict[str, int]:
    """The width of every node type."""
    if not isinstance(in_channels, Mapping):
        in_channels = dict.fromkeys(metadata.node_types, in_channels)
    missing = [each for each in metadata.node_types if each not in in_channels]
    if missing:
        raise LayerArgumentError(
            f"in_channels has no width for {', '.join(missing)}", "give one per node type"
        )
    unknown = {name: width for name, width in in_channels.items() if width < 0}
    if unknown:
        raise LayerArgumentError(f"in_channels is {unknown}", "give the widths of the features")
    return dict(in_channels)


def read_typed_input(
    x_dict: Any, edges: Any, metadata: Metadata, *, every_relation: bool = False
) -> TypedInput:
    """The graph of the relations that are given, or of all, with features in its order of types.

    `edges` is a mapping of relations to edges, a typed `RelationalGraph` or a typed DGL graph. Without
    it, `x_dict` is PyG's `HeteroData`, which has both.
    """
    if edges is None:
        x_dict, edges = _read_data(x_dict)
    if hasattr(edges, "canonical_etypes"):
        edges = find_graph(edges, None, 0, len(metadata.edge_types))
    _require_types(x_dict, edges, metadata)
    if not isinstance(edges, RelationalGraph):
        counts = {name: x_dict[name].shape[0] for name in metadata.node_types if name in x_dict}
        relations = tuple((one, name, other) for one, name, other in edges)
        if every_relation:
            relations = tuple(
                each for each in metadata.edge_types if each[0] in counts and each[2] in counts
            )
        graph = find_typed_graph(edges, counts, relations)
        return TypedInput({name: x_dict[name] for name in counts}, graph)
    for name, count in zip(edges.node_types, edges.nodes_per_type, strict=True):
        got = f"has {x_dict[name].shape[0]:,} rows" if name in x_dict else "is missing"
        if got != f"has {count:,} rows":
            raise LayerArgumentError(
                f"x_dict[{name!r}] {got}, but the graph has {count:,} nodes of that type",
                "give one row of features per node",
            )
    return TypedInput({name: x_dict[name] for name in edges.node_types}, edges)


def _read_data(data: Any) -> tuple[Any, Any]:
    try:
        return data.x_dict, data.edge_index_dict
    except AttributeError:
        raise LayerArgumentError(
            f"{type(data).__name__} was given without edges",
            "pass x_dict and edge_index_dict, or a HeteroData that has both",
        ) from None


def _require_types(x_dict: Any, edges: Any, metadata: Metadata) -> None:
    unknown = [name for name in x_dict if name not in metadata.node_types]
    if unknown:
        raise LayerArgumentError(
            f"node types {', '.join(unknown)} are unknown",
            f"the layer was made for {', '.join(metadata.node_types)}",
        )
    relations = edges.relations if isinstance(edges, RelationalGraph) else edges
    for each in relations:
        if tuple(each) not in metadata.edge_types:
            raise LayerArgumentError(
                f"relation {tuple(each)} is unknown",
                f"the layer was made for {', '.join(map(str, metadata.edge_types))}",
            )
        for end in (each[0], each[2]):
            if end not in x_dict:
                raise LayerArgumentError(
                    f"relation {tuple(each)} needs features of `{end}`", f"add x_dict[{end!r}]"
                )
