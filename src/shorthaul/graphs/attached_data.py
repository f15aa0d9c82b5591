"""What belongs to the nodes and edges of a graph: times, weights, features; in memory or on disk.

Data of edges have a row for each edge, in the order of the edge ids, or, by relation, a row for each
of the relation's edges, in the order in which that relation's edges were given.

>>> from shorthaul.graphs import RelationalGraph
>>> graph = RelationalGraph.from_edges([0, 1], [1, 0], relations=["rates"])
>>> read_edge_data(graph, {"weight": [0.5, 2.0], "stars": {"rates": torch.tensor([5, 3])}})
{'weight': tensor([0.5000, 2.0000]), 'stars': \
{Relation(source_type='node', name='rates', target_type='node'): tensor([5, 3])}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from shorthaul.errors import GraphError
from shorthaul.graphs.edge_tensors import as_plain
from shorthaul.graphs.index.indexes import RelationIndex
from shorthaul.graphs.relation import Relation
from shorthaul.tensors.tables.table import RowTable
from shorthaul.tensors.unified_tensor import UnifiedTensor

EdgeRows = torch.Tensor | Mapping[Relation, torch.Tensor]


class PlacedRows(NamedTuple):
    """Rows of one relation's edges among edges of several."""

    places: torch.Tensor  # where the relation's edges are, ascending
    rows: torch.Tensor  # one for each of them


# What was gathered for some edges: a row for each, or by relation.
GatheredEdgeRows = torch.Tensor | Mapping[Relation, PlacedRows]


class Edges(Protocol):
    """A graph, as far as its edges are counted."""

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The relations."""

    @property
    def num_edges(self) -> int:
        """Edges of all relations."""

    @property
    def edges_per_relation(self) -> tuple[int, ...]:
        """Edges of each relation."""

    def by_relation(self) -> RelationIndex:
        """The edges of each relation."""


def read_node_data(given: Any, types: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Data of nodes by name, a row for each node; of one type or some, the others get no time."""
    nodes = sum(types.values())
    found = {}
    for name, values in require_named("nodes", given).items():
        if isinstance(values, Mapping):
            found[name] = _join_types(name, values, types)
        else:
            found[name] = read_rows(f"nodes[{name!r}]", values, nodes, "nodes")
    return found


def read_edge_data(graph: Edges, given: Any) -> dict[str, EdgeRows]:
    """Data of edges by name, a row for each edge or, by relation, for each of its edges."""
    found: dict[str, EdgeRows] = {}
    for name, values in require_named("edges", given).items():
        if not isinstance(values, Mapping):
            found[name] = read_rows(f"edges[{name!r}]", values, graph.num_edges, "edges")
            continue
        parts: dict[Relation, torch.Tensor] = {}
        for key, rows in values.items():
            number = find_relation(graph.relations, key)
            where = f"edges[{name!r}][{key!r}]"
            own = graph.edges_per_relation[number]
            parts[graph.relations[number]] = read_rows(where, rows, own, "edges")
        found[name] = parts
    return found


def find_relation(relations: Sequence[Relation], key: Any) -> int:
    """The number of a relation, by its name where only one has it, or by its three words."""
    found = [number for number, each in enumerate(relations) if key in (tuple(each), each.name)]
    if len(found) != 1:
        known = ", ".join(f"`{each}`" for each in relations)
        raise GraphError(f"no single relation is called {key!r}; there are {known}.")
    return found[0]


def read_rows(where: str, values: Any, rows: int, counted: str) -> torch.Tensor:
    """`values` as a tensor of `rows` rows, on the CPU or on disk."""
    if isinstance(values, np.ndarray) and not values.flags.writeable:
        values = values.copy()
    if isinstance(values, torch.Tensor):
        tensor = values
    else:
        try:
            tensor = torch.as_tensor(values, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise GraphError(f"{where} must be a tensor of rows: {error}.") from error
    if tensor.dim() == 0 or tensor.shape[0] != rows:
        raise GraphError(
            f"{where} must have a row for each of {rows:,} {counted}, got shape {tuple(tensor.shape)}."
        )
    if tensor.device.type != "cpu" and not isinstance(tensor, UnifiedTensor):
        raise GraphError(f"{where} must be in memory or on disk, got a tensor on {tensor.device}.")
    return tensor if isinstance(tensor, UnifiedTensor) else tensor.detach()


def require_named(kind: str, given: Any) -> Mapping[str, Any]:
    """A mapping of names that may be those of files."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise GraphError(f"`{kind}` must map names to tensors, got {type(given).__name__}.")
    for name in given:
        if not isinstance(name, str) or not name.isidentifier():
            raise GraphError(
                f"{name!r} cannot name data of {kind}: a name is a word of letters, digits and _."
            )
    return given


def join_relations(graph: Edges, parts: Mapping[Relation, Any], fill: float) -> torch.Tensor:
    """One number for each edge from those of some relations; `fill` for all others."""
    columns = {each: as_plain(values) for each, values in parts.items()}
    dtype = torch.int64
    for values in columns.values():
        dtype = torch.promote_types(dtype, values.dtype) if values.is_floating_point() else dtype
    joined = torch.full((graph.num_edges,), fill, dtype=dtype, device="cpu")
    index = graph.by_relation()
    pointers, edges = as_plain(index.pointers), as_plain(index.edges)
    for relation, values in columns.items():
        number = graph.relations.index(relation)
        joined[edges[pointers[number] : pointers[number + 1]].long()] = values.to(dtype)
    return joined


def gather_edge_rows(
    graph: Edges,
    tables: RowTable | Mapping[Relation, RowTable],
    edges: torch.Tensor,
    relations: Callable[[], torch.Tensor],
) -> GatheredEdgeRows:
    """The rows of `edges`; by relation, each with the places that its edges have among `edges`."""
    if isinstance(tables, RowTable):
        return tables.gather(edges)
    numbers = relations()
    found = {}
    for relation, table in tables.items():
        number = graph.relations.index(relation)
        places = torch.nonzero(numbers == number)[:, 0]
        own = count_within_relation(graph, edges[places], number)
        found[relation] = PlacedRows(places, table.gather(own))
    return found


def count_within_relation(graph: Edges, edges: torch.Tensor, number: int) -> torch.Tensor:
    """Edge ids of one relation as places among the relation's edges."""
    index, own = graph.by_relation(), range_of_relation(graph, number)
    if not own:
        return edges.long()
    ends = torch.tensor([own[0], own[-1]], dtype=torch.int64, device="cpu")
    first, last = map(int, as_plain(index.edges[ends]))
    if last - first == own[-1] - own[0]:  # they follow each other
        return edges.long() - first
    ids = as_plain(index.edges[own.start : own.stop])
    return torch.searchsorted(ids, edges.to(ids.dtype))


def range_of_relation(graph: Edges, number: int) -> range:
    """Where a relation's edges are in the index by relation, in memory or on disk."""
    start, stop = as_plain(graph.by_relation().pointers[number : number + 2]).tolist()
    return range(start, stop)


def repeat_for_inverses(data: Mapping[str, EdgeRows]) -> dict[str, EdgeRows]:
    """The data of edges that are there once more, backwards."""
    doubled: dict[str, EdgeRows] = {}
    for name, rows in data.items():
        if isinstance(rows, torch.Tensor):
            doubled[name] = torch.cat([as_plain(rows)] * 2)
        else:
            doubled[name] = {**rows, **{each.reversed(): part for each, part in rows.items()}}
    return doubled


def _join_types(name: str, values: Mapping[str, Any], types: Mapping[str, int]) -> torch.Tensor:
    """One number for each node; those of types that are left out have always been there."""
    parts = []
    for each in values:
        if each not in types:
            known = ", ".join(f"`{kind}`" for kind in types)
            raise GraphError(f"nodes[{name!r}] names the type `{each}`; there are {known}.")
    for kind, count in types.items():
        if kind not in values:
            parts.append(torch.full((count,), -(2**63), dtype=torch.int64, device="cpu"))
            continue
        rows = as_plain(read_rows(f"nodes[{name!r}][{kind!r}]", values[kind], count, "nodes"))
        if rows.dim() != 1 or rows.is_floating_point() or rows.is_complex():
            raise GraphError(
                f"nodes[{name!r}][{kind!r}] must be a vector of whole numbers, such as times, got "
                f"{rows.dtype} of shape {tuple(rows.shape)}.\n"
                "  Features of several widths stay in a mapping of their own, as loaders take them."
            )
        parts.append(rows.long())
    return torch.cat(parts)
