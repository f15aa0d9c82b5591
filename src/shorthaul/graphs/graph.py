"""`RelationalGraph`: typed nodes, relations, edges, and the orders in which edges are read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import torch

from shorthaul.errors import GraphChangedError, GraphError
from shorthaul.graphs.attached_data import (
    EdgeRows,
    read_edge_data,
    read_node_data,
    repeat_for_inverses,
)
from shorthaul.graphs.declared_types import (
    choose_relations,
    choose_types,
    count_types,
    listed,
    read_relation_name,
    read_relation_numbers,
    read_types,
    require_joined_types,
    require_names,
)
from shorthaul.graphs.edge_tensors import (
    as_plain,
    choose_builder,
    choose_index_dtype,
    group_by_relation,
    read_numbers,
    require_lengths,
    require_range,
    share_column,
    split_edge_index,
)
from shorthaul.graphs.index.indexes import PairIndex, RelationIndex, SourceIndex, TargetIndex
from shorthaul.graphs.known_graphs import remember_graph
from shorthaul.graphs.relation import Relation
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import alone_after_fork

# How graphs come in and go out: readers, saving and exchange enter their functions here, by name.
DOORS: dict[str, Callable[..., Any]] = {}

Index = TypeVar("Index", TargetIndex, SourceIndex, RelationIndex, PairIndex)


@dataclass(frozen=True, eq=False, repr=False)
class RelationalGraph:
    """A graph whose nodes have types and whose edges have relations; it does not change.

    >>> import torch
    >>> from shorthaul.graphs import RelationalGraph
    >>> graph = RelationalGraph.from_edges([0, 0, 1], [1, 2, 2], relation=[0, 1, 0])
    >>> graph
    RelationalGraph(3 nodes, 3 edges, 2 relations)
    >>> incoming = graph.by_target()
    >>> incoming.sources[incoming.pointers[2] : incoming.pointers[3]].tolist()  # who reaches node 2
    [1, 0]

    Nodes have global ids: those of type `t` are `node_offsets[t]` to `node_offsets[t + 1]`. Edges keep
    the order in which they were given; a position in it is an edge's id. Indexes are built at first
    use. Make one with `from_edges`, `from_typed_edges`, `read`, `open`, `from_pyg` or `from_dgl`.
    """

    node_types: tuple[str, ...]  # names, in the order of the node ids
    nodes_per_type: tuple[int, ...]  # in the same order
    relations: tuple[Relation, ...]  # in the order of their numbers
    source: torch.Tensor  # (E,) global ids, int32 or int64
    target: torch.Tensor  # (E,)
    relation: torch.Tensor  # (E,) positions in `relations`
    node_names: Sequence[str] | None = None  # one for each node
    skipped_lines: int = 0  # malformed ones, of the file it was read from with strict=False
    node_data: Mapping[str, torch.Tensor] = field(default_factory=dict)  # a row for each node
    edge_data: Mapping[str, EdgeRows] = field(default_factory=dict)  # .. edge, or by relation
    indexes: dict[str, Any] = field(default_factory=dict)  # by name, each made when it is asked for
    _versions: tuple[int, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "_versions", self._read_versions())
        remember_graph(self)

    @classmethod
    @outside_graphs
    @alone_after_fork
    def from_edges(
        cls,
        source: Any,
        target: Any,
        relation: Any = None,
        *,
        num_nodes: int | None = None,
        num_relations: int | None = None,
        relations: Sequence[str | tuple[str, str, str]] | None = None,
        nodes_per_type: Mapping[str, int] | None = None,
        node_names: Sequence[str] | None = None,
        index_dtype: torch.dtype | None = None,
        skipped_lines: int = 0,
    ) -> RelationalGraph:
        """A graph from global node ids and relation numbers, one of each per edge.

        Args:
            source: Where each edge begins.
            target: Where each edge ends.
            relation: The relation of each edge; None (default) where all have the same.
            num_nodes: None (default) takes one more than the largest id.
            num_relations: None (default) takes one more than the largest number.
            relations: Names, as words or as (source type, name, target type); None (default) for
                none.
            nodes_per_type: Number of nodes of each type, in the order of the node ids; None
                (default) for one type.
            node_names: A name for each node; None (default) for none.
            index_dtype: `torch.int32` or `torch.int64`; None (default) takes the smaller one that
                fits.
            skipped_lines: Malformed lines of the file that the edges come from (default 0).
        """
        ends = read_numbers(source, "source"), read_numbers(target, "target")
        kind = read_relation_numbers(relation, ends[0])
        require_lengths(source=ends[0], target=ends[1], relation=kind)
        types = choose_types(nodes_per_type, num_nodes, ends, node_names)
        named = choose_relations(relations, num_relations, relation, kind, tuple(types))
        nodes, edges = sum(types.values()), kind.numel()
        require_range(ends[0], nodes, "source", "nodes")
        require_range(ends[1], nodes, "target", "nodes")
        require_range(kind, len(named), "relation", "relations")
        dtype = choose_index_dtype(index_dtype, max(nodes, edges, len(named)))
        one, other, numbers = (each.to(dtype).contiguous() for each in (*ends, kind))
        counts = tuple(types.values())
        graph = cls(tuple(types), counts, named, one, other, numbers, node_names, skipped_lines)
        if len(types) > 1:
            graph._require_types()
        return graph

    @classmethod
    def from_edge_index(
        cls, edge_index: Any, edge_type: Any = None, **options: Any
    ) -> RelationalGraph:
        """A graph from PyG's tensors.

        >>> edge_index = torch.tensor([[0, 1], [1, 2]])
        >>> RelationalGraph.from_edge_index(edge_index, torch.tensor([0, 1]), num_nodes=5)
        RelationalGraph(5 nodes, 2 edges, 2 relations)

        Args:
            edge_index: (2, edges).
            edge_type: The relation of each edge; None (default) where all have the same.
            options: Further arguments of `from_edges`.
        """
        return cls.from_edges(*split_edge_index(edge_index), edge_type, **options)

    @classmethod
    @outside_graphs
    @alone_after_fork
    def from_typed_edges(
        cls,
        edges: Mapping[tuple[str, str, str], Any],
        nodes_per_type: Mapping[str, int] | None = None,
        *,
        node_names: Sequence[str] | None = None,
        index_dtype: torch.dtype | None = None,
    ) -> RelationalGraph:
        """A graph from one `edge_index` per relation, with ids that count within each node type.

        >>> graph = RelationalGraph.from_typed_edges(
        ...     {("author", "writes", "paper"): torch.tensor([[0, 1], [2, 2]])},
        ...     {"author": 2, "paper": 3},
        ... )
        >>> graph.target.tolist()  # papers come after the two authors
        [4, 4]

        Args:
            edges: (2, edges) for each relation.
            nodes_per_type: Number of nodes of each type; None (default) takes one more than the
                largest id of each.
            node_names: A name for each node, in the order of the types; None (default) for none.
            index_dtype: `torch.int32` or `torch.int64`; None (default) takes the smaller one that
                fits.
        """
        local = {read_relation_name(key): split_edge_index(edges[key], str(key)) for key in edges}
        ends = {
            each: (read_numbers(one, f"source of {each}"), read_numbers(other, f"target of {each}"))
            for each, (one, other) in local.items()
        }
        types = count_types(ends) if nodes_per_type is None else read_types(nodes_per_type)
        offsets = dict(zip(types, itertools.accumulate(types.values(), initial=0)))  # noqa: B905
        edges_in_all = sum(one.numel() for one, _ in ends.values())
        dtype = choose_index_dtype(index_dtype, max(sum(types.values()), edges_in_all, len(ends)))
        columns: tuple[list[torch.Tensor], ...] = ([], [], [])
        for number, (each, (one, other)) in enumerate(ends.items()):
            require_lengths(**{f"source of {each}": one, f"target of {each}": other})
            for values, kind, name, column in (
                (one, each.source_type, "source", columns[0]),
                (other, each.target_type, "target", columns[1]),
            ):
                if kind not in types:
                    raise GraphError(
                        f"relation `{each}` has {name}s of type `{kind}`, but nodes_per_type has "
                        f"{listed(types)}."
                    )
                require_range(values, types[kind], f"{name} (in `{each}`)", f"nodes of `{kind}`")
                column.append(values.to(dtype) + offsets[kind])
            columns[2].append(torch.full((one.numel(),), number, dtype=dtype, device="cpu"))
        empty = [torch.empty(0, dtype=dtype, device="cpu")]
        source, target, relation = (torch.cat(empty + column) for column in columns)
        require_names(node_names, sum(types.values()))
        counts = tuple(types.values())
        return cls(tuple(types), counts, tuple(ends), source, target, relation, node_names)

    @classmethod
    def read(cls, path: Any, format: str | None = None, **options: Any) -> RelationalGraph:
        """The graph in a file or folder: N-Triples, integer triples, OpenKE, edge lists, npy, OGB.

        Args:
            path: File or folder. A mapping of relations to files of pairs makes a graph with types:
                `{("author", "writes", "paper"): "writes.txt"}`.
            format: `"n_triples"`, `"triples"`, `"open_ke"`, `"edge_list"`, `"npy_pairs"` or
                `"ogb"`; None (default) finds out.
            options: Those of the reader (docs/graphs.md lists them); `strict=False` skips malformed
                lines instead of raising.
        """
        graph: RelationalGraph = DOORS["read_graph"](path, format, **options)
        return graph

    def save(self, folder: Any, indexes: Sequence[str] | None = None) -> Any:
        """Write the graph to a folder, to be opened again with `RelationalGraph.open`.

        `indexes` are some of `relation`, `target`, `source`, `pairs_source` and `pairs_target`; those
        that were built so far, and `target`, where it is left out.

        Args:
            folder: Where to write; created if missing.
            indexes: Some of `relation`, `target`, `source`, `pairs_source` and `pairs_target`; None
                (default) for those that were built so far, and `target`.
        """
        return DOORS["save_graph"](self, folder, indexes)

    @classmethod
    def open(cls, folder: Any, *, in_memory: bool = False, mapped: bool = False) -> RelationalGraph:
        """A graph that was saved, without reading it: its tensors and indexes stay on disk.

        They are unified tensors, read by rows as a sampler asks for them. An index that was not
        saved is built, in memory, at its first use (`sh.graphs.add_indexes` makes it on disk).

        Args:
            folder: What `save` wrote.
            in_memory: Whether everything is read now (default False).
            mapped: Whether indexes are mapped memory, of which the system keeps what fits (default
                False). They are read once now, to be checked, and must not be written to meanwhile.
        """
        graph: RelationalGraph = DOORS["open_graph"](folder, in_memory=in_memory, mapped=mapped)
        return graph

    @classmethod
    def from_pyg(cls, data: Any, index_dtype: torch.dtype | None = None) -> RelationalGraph:
        """The structure of PyG's `Data` (and its `edge_type`) or `HeteroData`.

        Args:
            data: `Data` or `HeteroData`.
            index_dtype: `torch.int32` or `torch.int64`; None (default) takes the smaller one that
                fits.
        """
        graph: RelationalGraph = DOORS["graph_from_pyg"](data, index_dtype)
        return graph

    def to_pyg(self) -> Any:
        """The structure as PyG's `Data`, or as `HeteroData` where nodes have several types."""
        return DOORS["graph_to_pyg"](self)

    @classmethod
    def from_dgl(
        cls, graph: Any, edge_type: Any = None, index_dtype: torch.dtype | None = None
    ) -> RelationalGraph:
        """The structure of a DGL graph.

        Args:
            graph: The DGL graph.
            edge_type: The relation of each edge: a tensor, or a name in the graph's edge data; None
                (default) takes the graph's types.
            index_dtype: `torch.int32` or `torch.int64`; None (default) takes the smaller one that
                fits.
        """
        made: RelationalGraph = DOORS["graph_from_dgl"](graph, edge_type, index_dtype)
        return made

    def to_dgl(self) -> Any:
        """The structure as a DGL graph."""
        return DOORS["graph_to_dgl"](self)

    @property
    def num_nodes(self) -> int:
        """Nodes of all types."""
        return sum(self.nodes_per_type)

    @property
    def num_edges(self) -> int:
        """Edges of all relations."""
        return self.source.shape[0]

    @property
    def num_relations(self) -> int:
        """Relations, also those without edges."""
        return len(self.relations)

    @property
    def node_offsets(self) -> tuple[int, ...]:
        """Where each node type's ids begin, and at last the number of nodes."""
        return tuple(itertools.accumulate(self.nodes_per_type, initial=0))

    @property
    def index_dtype(self) -> torch.dtype:
        """The dtype of edges and indexes."""
        return self.source.dtype

    @property
    def edges_per_relation(self) -> tuple[int, ...]:
        """How many edges each relation has."""
        return tuple(as_plain(self.by_relation().pointers).diff().tolist())

    def nodes_of(self, node_type: str) -> range:
        """The global ids of one type's nodes."""
        if node_type not in self.node_types:
            raise GraphError(
                f"there is no node type {node_type!r}; there are {listed(self.node_types)}."
            )
        at = self.node_types.index(node_type)
        return range(self.node_offsets[at], self.node_offsets[at + 1])

    def relation_number(self, relation: str | tuple[str, str, str]) -> int:
        """The number of a relation, by its name where only one has it, or by all three words."""
        found = [
            number for number, each in enumerate(self.relations) if relation in (each, each.name)
        ]
        if len(found) != 1:
            told = " ".join(relation) if not isinstance(relation, str) else relation
            problem = f"{len(found)} relations are called" if found else "there is no relation"
            among = [self.relations[number] for number in found] or self.relations
            raise GraphError(f"{problem} `{told}`; there are {listed(map(str, among))}.")
        return found[0]

    def with_inverses(self) -> RelationalGraph:
        """The same graph with every edge once more, backwards, as `<name>_reversed` relations.

        The inverse of edge `e` is edge `num_edges + e`, and that of relation `r` is
        `num_relations + r`.
        """
        self.require_unchanged()
        inverses = tuple(each.reversed() for each in self.relations)
        if not set(inverses).isdisjoint(self.relations):
            both = next(each for each in inverses if each in self.relations)
            raise GraphError(f"the graph has the inverse relation `{both}` already.")
        relations = (*self.relations, *inverses)
        dtype = choose_index_dtype(
            torch.int64 if self.index_dtype is torch.int64 else None,
            max(self.num_nodes, 2 * self.num_edges, len(relations)),
        )
        source, target, relation = (
            as_plain(each).to(dtype) for each in (self.source, self.target, self.relation)
        )
        return RelationalGraph(
            self.node_types,
            self.nodes_per_type,
            relations,
            torch.cat([source, target]),
            torch.cat([target, source]),
            torch.cat([relation, relation + self.num_relations]),
            self.node_names,
            node_data=self.node_data,
            edge_data=repeat_for_inverses(self.edge_data),
        )

    def with_data(self, *, nodes: Any = None, edges: Any = None) -> RelationalGraph:
        """The same graph with data of its nodes and edges: times, weights, features of edges.

        >>> graph = RelationalGraph.from_edges([0, 1], [1, 2])
        >>> timed = graph.with_data(nodes={"time": [7, 8, 9]}, edges={"weight": [0.5, 2.0]})
        >>> timed.node_data["time"].tolist(), timed.edge_data["weight"].tolist()
        ([7, 8, 9], [0.5, 2.0])

        Tensors may lie on disk.

        Args:
            nodes: A tensor by name, with a row for each node, or a mapping of types to whole
                numbers, such as times; None (default) for none.
            edges: A tensor by name, in the order of the edge ids, or a mapping of relations to rows
                for each of their edges; None (default) for none.
        """
        types = dict(zip(self.node_types, self.nodes_per_type, strict=True))
        return replace(
            self,
            source=share_column(self.source),  # of its own, as graphs are found by it
            node_data={**self.node_data, **read_node_data(nodes, types)},
            edge_data={**self.edge_data, **read_edge_data(self, edges)},
        )

    def by_relation(self) -> RelationIndex:
        """Edges of each relation, in the order they were given."""
        return self._index("relation", RelationIndex, self._build_relation)

    def by_target(self) -> TargetIndex:
        """Incoming edges of each node, by relation: what aggregation reads."""
        return self._index("target", TargetIndex, lambda: self._build_rows("target"))

    def by_source(self) -> SourceIndex:
        """Outgoing edges of each node, by relation: what gradients read."""
        return self._index("source", SourceIndex, lambda: self._build_rows("source"))

    def pairs(self, side: Literal["source", "target"]) -> PairIndex:
        """The distinct (relation, node) pairs at one end of the edges."""
        if side not in ("source", "target"):
            raise GraphError(f"side must be 'source' or 'target', got {side!r}.")
        return self._index(f"pairs_{side}", PairIndex, lambda: self._build_pairs(side))

    def summary(self) -> str:
        """A few lines to print: sizes, and every relation with its edges."""
        types = ", ".join(
            f"{name} {count:,}"
            for name, count in zip(self.node_types, self.nodes_per_type, strict=True)
        )
        lines = [repr(self), f"nodes: {types}", "edges:"]
        for relation, count in zip(self.relations, self.edges_per_relation, strict=True):
            lines.append(f"  {count:>12,}  {relation}")
        return "\n".join(lines)

    @outside_graphs
    def _index(self, name: str, kind: type[Index], build: Any) -> Index:
        self.require_unchanged()
        found: Index | None = self.indexes.get(name)
        if found is None:
            # Tensors made in inference mode could not be saved for a backward pass later. There is no
            # lock: two threads build the same numbers, and one is kept.
            with torch.inference_mode(False):
                made = kind(*alone_after_fork(build)())
            found = self.indexes.setdefault(name, made)
        return found

    def _build_relation(self) -> tuple[torch.Tensor, ...]:
        relation, source, target = map(as_plain, (self.relation, self.source, self.target))
        return group_by_relation(relation, source, target, self.num_relations)

    def _build_rows(self, side: str) -> tuple[torch.Tensor, ...]:
        by_relation = self.by_relation()
        ends = as_plain(by_relation.targets), as_plain(by_relation.sources)
        keys, others = ends if side == "target" else ends[::-1]
        made: tuple[torch.Tensor, ...] = choose_builder(keys).sort_rows(
            keys,
            others,
            as_plain(by_relation.edges),
            as_plain(by_relation.pointers),
            self.num_nodes,
        )
        return made

    def _build_pairs(self, side: str) -> tuple[torch.Tensor, ...]:
        rows = self.by_target() if side == "target" else self.by_source()
        pointers = as_plain(rows.pointers)
        made: tuple[torch.Tensor, ...] = choose_builder(pointers).find_pairs(
            pointers,
            as_plain(rows.relations),
            as_plain(rows.edges),
            as_plain(self.by_relation().pointers),
        )
        return made

    def _require_types(self) -> None:
        """Raise unless every edge joins nodes of the types that its relation names."""
        types = dict(zip(self.node_types, self.nodes_per_type, strict=True))
        require_joined_types(types, self.relations, self.source, self.target, self.relation)

    def _read_versions(self) -> tuple[int, ...]:
        tensors = (self.source, self.target, self.relation)
        return tuple(0 if each.is_inference() else each._version for each in tensors)

    def require_unchanged(self) -> None:
        """Raise `GraphChangedError` if the edges were written to since the graph was made."""
        now = self._read_versions()
        if now != self._versions:
            names = ("source", "target", "relation")
            changed = [
                name
                for name, old, new in zip(names, self._versions, now, strict=True)
                if old != new
            ]
            raise GraphChangedError(changed)

    def __getstate__(self) -> dict[str, Any]:
        self.require_unchanged()  # a copy would take the changed tensors for the true ones
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__["_versions"] = self._read_versions()
        remember_graph(self)

    def __repr__(self) -> str:
        types = f" of {len(self.node_types)} types" if len(self.node_types) > 1 else ""
        return (
            f"RelationalGraph({self.num_nodes:,} nodes{types}, {self.num_edges:,} edges, "
            f"{self.num_relations:,} relation{'' if self.num_relations == 1 else 's'})"
        )
