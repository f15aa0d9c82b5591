"""Whatever people call a graph, as a `RelationalGraph`: built once for the same tensors."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from shorthaul.graphs import RelationalGraph

KEPT_GRAPHS = 16  # a model sees few full graphs; mini-batches come and go

_kept: OrderedDict[Any, tuple[tuple[weakref.ref[torch.Tensor], ...], RelationalGraph]] = (
    OrderedDict()
)


def glorot(parameter: torch.Tensor) -> None:
    """Uniform within sqrt(6 / the sum of the last two sizes)."""
    limit = (6.0 / (parameter.shape[-2] + parameter.shape[-1])) ** 0.5
    nn.init.uniform_(parameter, -limit, limit)


def find_graph(
    edge_index: torch.Tensor | RelationalGraph,
    edge_type: torch.Tensor | None,
    num_nodes: int,
    num_relations: int,
) -> RelationalGraph:
    """The graph of PyG's `edge_index` and `edge_type`, kept while the tensors live unchanged."""
    if isinstance(edge_index, RelationalGraph):
        return edge_index
    tensors = [edge_index] + ([] if edge_type is None else [edge_type])
    key = (num_nodes, num_relations, *_identify(tensors))
    return _keep(
        key,
        tensors,
        lambda: RelationalGraph.from_edge_index(
            edge_index, edge_type, num_nodes=num_nodes, num_relations=num_relations
        ),
    )


def find_typed_graph(
    edges: Mapping[tuple[str, str, str], torch.Tensor],
    nodes_per_type: Mapping[str, int],
    relations: tuple[tuple[str, str, str], ...],
) -> RelationalGraph:
    """The graph of one `edge_index` per relation; relations that are not given have no edges."""
    empty = torch.empty(2, 0, dtype=torch.int64)
    tensors = [edges.get(relation, empty) for relation in relations]
    key = (tuple(nodes_per_type.items()), relations, *_identify(tensors))
    return _keep(
        key,
        tensors,
        lambda: RelationalGraph.from_typed_edges(
            dict(zip(relations, tensors, strict=True)), nodes_per_type
        ),
    )


def _identify(tensors: list[torch.Tensor]) -> tuple[Any, ...]:
    return tuple(
        (id(each), each.data_ptr(), tuple(each.shape), -1 if each.is_inference() else each._version)
        for each in tensors
        if each.numel()
    )


def _keep(key: Any, tensors: list[torch.Tensor], make: Any) -> RelationalGraph:
    found = _kept.get(key)
    if found is not None and all(each() is not None for each in found[0]):
        _kept.move_to_end(key)
        return found[1]
    graph: RelationalGraph = make()
    _kept[key] = (tuple(weakref.ref(each) for each in tensors if each.numel()), graph)
    while len(_kept) > KEPT_GRAPHS:
        _kept.popitem(last=False)
    return graph
