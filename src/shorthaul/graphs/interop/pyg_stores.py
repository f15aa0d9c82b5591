"""PyG's `FeatureStore` and `GraphStore` over shorthaul's tables and graphs.

PyG's own loaders then run on features that lie in memory or on disk, with nothing changed but their
first argument::

    from shorthaul.graphs.interop.pyg_stores import FeatureStore, GraphStore

    stores = FeatureStore(graph, {"paper": {"x": sh.open("papers.npy")}}), GraphStore(graph)
    loader = NeighborLoader(stores, num_neighbors=[15, 10], input_nodes=("paper", train))

PyG's loaders index whatever a store lists with node ids, features of edges too, which is silently
wrong. So this one lists features of nodes only, and hands out those of edges by edge ids, when asked:
`NeighborLoader(..., transform=feature_store.add_edge_features)` adds them to each batch.

This module needs `torch_geometric` (`pip install 'shorthaul[pyg]'`); nothing else of `graphs` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from shorthaul.errors import MissingExtraError, SamplingError
from shorthaul.graphs.attached_data import range_of_relation
from shorthaul.graphs.declared_types import listed
from shorthaul.graphs.edge_tensors import as_plain
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.interop.pyg import count_within_type
from shorthaul.graphs.loading.feature_rows import as_table
from shorthaul.graphs.relation import Relation
from shorthaul.tensors import unified
from shorthaul.tensors.tables.table import RowTable

try:
    from torch_geometric import data as pyg
except ImportError as error:
    raise MissingExtraError("torch_geometric", "pyg", "a store for PyG's loaders") from error

Group = str | tuple[str, str, str] | None  # a node type, an edge type, or a graph's only one
NODE_IDS = "n_id"


class FeatureStore(pyg.FeatureStore):  # type: ignore[misc]
    """Rows by node type or edge type and name, in memory or on disk.

    `features` maps node types, and edge types as three words, to tables by name. For a graph with one
    node type and one relation, as PyG's homogeneous graphs are, it maps names to tables of nodes, and
    `edge_features` names to tables of edges, in the order in which the edges were given.
    """

    def __init__(
        self,
        graph: RelationalGraph,
        features: Mapping[Any, Any] | None = None,
        edge_features: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.graph = graph
        self.tables: dict[tuple[Group, str], RowTable] = {}
        groups: dict[Group, Any] = {**_require_mapping("features", features)}
        named_edges = _require_mapping("edge_features", edge_features)
        if is_homogeneous(graph):
            groups = {None: groups, graph.relations[0]: named_edges}
        elif named_edges:
            raise SamplingError(
                "edge_features is for graphs with one relation; name the edge type in `features`: "
                f"{{{tuple(graph.relations[0])!r}: {{'name': table}}}}."
            )
        for group, named in groups.items():
            if not isinstance(named, Mapping):
                raise self._without_group(group, named)
            for name, values in named.items():
                self.put_tensor(values, group_name=group, attr_name=name, index=None)

    def _without_group(self, name: Any, values: Any) -> SamplingError:
        """For features that are named, but not those of whom."""
        graph = self.graph
        return SamplingError(
            f"features[{name!r}] must map names to tables, got {type(values).__name__}: the graph has "
            f"{len(graph.node_types):,} node types and {graph.num_relations:,} relations, so features "
            "are of a node type or of an edge type.\n"
            f"  Pass {{{graph.node_types[0]!r}: {{{name!r}: table}}}}; node types are "
            f"{listed(graph.node_types)}."
        )

    def get_all_tensor_attrs(self) -> list[Any]:
        """The features of nodes; a type without any has its ids, so that PyG knows the type."""
        found = [key for key in self.tables if not isinstance(key[0], tuple)]
        if not is_homogeneous(self.graph):
            known = {group for group, _ in found}
            found += [(each, NODE_IDS) for each in self.graph.node_types if each not in known]
        return [self._tensor_attr_cls(group, name) for group, name in found]

    def add_edge_features(self, data: Any) -> Any:
        """Give a sampled batch the features of its edges; a `transform` of PyG's loaders."""
        for (group, name), table in self.tables.items():
            if not isinstance(group, tuple):
                continue
            store = data if is_homogeneous(self.graph) else data[group]
            if "e_id" not in store:
                raise SamplingError(
                    f"the batch does not know the ids of its edges of type {group}, so `{name}` cannot "
                    "be found; PyG's loaders give them as `e_id`."
                )
            store[name] = table.gather(store.e_id.long().cpu())
        return data

    def _put_tensor(self, tensor: Any, attr: Any) -> bool:
        group, name = self._key_of(attr)
        if attr.index is not None:
            self.tables[group, name].scatter_(
                _as_ids(attr.index), torch.as_tensor(tensor, device="cpu")
            )
            return True
        if isinstance(tensor, Mapping):
            raise SamplingError(
                f"`{name}` must be a table of rows, got a mapping: a graph with one node type and one "
                "relation has features by name, {'x': table}."
            )
        values = tensor if isinstance(tensor, torch.Tensor | RowTable) else unified(tensor)
        where = f"`{name}` of {group or 'the nodes'}"
        self.tables[group, name] = as_table(values, where, self._count_rows(group))
        return True

    def _get_tensor(self, attr: Any) -> Any:
        group, name = self._key_of(attr)
        if (group, name) not in self.tables:
            if name == NODE_IDS and isinstance(group, str):
                every = torch.arange(self._count_rows(group), dtype=torch.int64, device="cpu")
                return every if attr.index is None else every[attr.index]
            known = ", ".join(f"`{each}` of {of or 'the nodes'}" for of, each in self.tables)
            raise SamplingError(
                f"there is no `{name}` of {group or 'the nodes'}; there is {known or 'nothing'}."
            )
        table = self.tables[group, name]
        if attr.index is None:
            return table.read(0, table.rows)
        if isinstance(attr.index, slice):
            start, stop, step = attr.index.indices(table.rows)
            return table.read(start, max(start, stop))[::step]
        if isinstance(attr.index, int | np.integer):
            return table.gather(torch.tensor([int(attr.index)], dtype=torch.int64, device="cpu"))[0]
        return table.gather(_as_ids(attr.index))

    def _remove_tensor(self, attr: Any) -> bool:
        return self.tables.pop(self._key_of(attr), None) is not None

    def _get_tensor_size(self, attr: Any) -> tuple[int, ...] | None:
        group, name = self._key_of(attr)
        if (group, name) in self.tables:
            return self.tables[group, name].shape
        return (self._count_rows(group),) if name == NODE_IDS else None

    def _key_of(self, attr: Any) -> tuple[Group, str]:
        group = attr.group_name
        if isinstance(group, list | tuple):
            source, relation, target = group
            return (source, relation, target), attr.attr_name
        if is_homogeneous(self.graph) and group in self.graph.node_types:
            group = None
        return group, attr.attr_name

    def _count_rows(self, group: Group) -> int:
        if group is None:
            return self.graph.num_nodes
        if isinstance(group, str):
            return len(self.graph.nodes_of(group))
        return self.graph.edges_per_relation[self.graph.relation_number(group)]

    def __repr__(self) -> str:
        return f"FeatureStore({len(self.tables)} tables of {self.graph!r})"


class GraphStore(pyg.GraphStore):  # type: ignore[misc]
    """The edges of a `RelationalGraph` by edge type; it does not change.

    Neighbor loaders get the graph's own order by target, with the edge ids that belong to it: nothing
    is sorted again, and `e_id` counts edges in the order in which their relation had them.
    """

    def __init__(self, graph: RelationalGraph) -> None:
        super().__init__()
        self.graph = graph

    def get_all_edge_attrs(self) -> list[Any]:
        """One for each relation."""
        return [self._attr_of(each) for each in self.graph.relations]

    def csc(self, edge_types: list[Any] | None = None, store: bool = False) -> Any:  # noqa: ARG002
        """Sources, pointers and edge ids by target: tensors, or mappings by edge type."""
        if is_homogeneous(self.graph):
            index = self.graph.by_target()
            return index.sources[:].long(), index.pointers[:].long(), index.edges[:].long()
        relations = self.graph.relations if edge_types is None else edge_types
        parts = {tuple(each): self._by_target(each) for each in relations}
        return tuple({name: part[column] for name, part in parts.items()} for column in range(3))

    def _by_target(self, relation: Any) -> tuple[torch.Tensor, ...]:
        source, target = self._edges_of(relation)
        order = torch.argsort(target, stable=True)
        size = self._attr_of(Relation(*relation)).size
        counts = torch.bincount(target, minlength=size[1])
        pointers = torch.zeros(size[1] + 1, dtype=torch.int64, device="cpu")
        torch.cumsum(counts, 0, out=pointers[1:])
        return source[order], pointers, order

    def _edges_of(self, relation: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Local source and target ids of one relation's edges, in the order they were given."""
        number = self.graph.relation_number(tuple(relation))
        own = range_of_relation(self.graph, number)
        edges = as_plain(self.graph.by_relation().edges[own.start : own.stop])
        named = self.graph.relations[number]
        source, target = (
            as_plain(each[edges]).long() for each in (self.graph.source, self.graph.target)
        )
        return (
            count_within_type(self.graph, named, "source", source),
            count_within_type(self.graph, named, "target", target),
        )

    def _attr_of(self, relation: Relation) -> Any:
        sizes = [
            len(self.graph.nodes_of(each)) for each in (relation.source_type, relation.target_type)
        ]
        edge_type = None if is_homogeneous(self.graph) else tuple(relation)
        return self._edge_attr_cls(edge_type, "coo", is_sorted=False, size=tuple(sizes))

    def _get_edge_index(self, edge_attr: Any) -> Any:
        if edge_attr.layout.value != "coo":
            return None
        if edge_attr.edge_type is None:
            return self._edges_of(self.graph.relations[0])
        is_known = tuple(edge_attr.edge_type) in map(tuple, self.graph.relations)
        return self._edges_of(edge_attr.edge_type) if is_known else None

    def _put_edge_index(self, edge_index: Any, edge_attr: Any) -> bool:  # noqa: ARG002
        raise SamplingError(
            "a graph does not change, so its store takes no edges; make another RelationalGraph."
        )

    def _remove_edge_index(self, edge_attr: Any) -> bool:
        return bool(self._put_edge_index(None, edge_attr))

    def __repr__(self) -> str:
        return f"GraphStore({self.graph!r})"


def _require_mapping(name: str, given: Any) -> Mapping[Any, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise SamplingError(f"{name} must be a mapping, got {type(given).__name__}.")
    return given or {}


def is_homogeneous(graph: RelationalGraph) -> bool:
    """Whether PyG would call it so: one type of nodes, one of edges."""
    return len(graph.node_types) == 1 and graph.num_relations == 1


def _as_ids(index: Any) -> torch.Tensor:
    ids = torch.as_tensor(index, device="cpu")
    if ids.dtype is torch.bool:
        return ids.nonzero()[:, 0].cpu()
    return ids.cpu() if ids.dtype in (torch.int32, torch.int64) else ids.long().cpu()
