"""`python_graph`: a relational graph of the standard library that is installed here.

Modules, classes, functions, attributes and names are nodes; who imports, defines, calls, inherits,
decorates, uses and writes what are edges. The task: tell what a function gives back from everything
about it but its `return` and `yield` statements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from shorthaul.datasets.array_cache import Arrays, cached_arrays
from shorthaul.datasets.graph_assembly import NODE_TYPES, RELATIONS, SPLITS, Relation, assemble
from shorthaul.datasets.module_syntax import ModuleSyntax, parse_module
from shorthaul.datasets.progress import with_progress
from shorthaul.datasets.return_kinds import RETURN_KINDS
from shorthaul.datasets.standard_library import (
    LibraryFile,
    choose_files,
    fingerprint,
    library_directory,
    list_library,
)
from shorthaul.errors import DatasetError

if TYPE_CHECKING:
    from shorthaul.graphs.graph import RelationalGraph

# Raise it whenever the same files would give other arrays than before.
FORMAT = 1


@dataclass(frozen=True, eq=False, repr=False)
class PythonGraph:
    """A relational graph with a node-classification task, as plain tensors.

    Node ids are grouped by type, in the order of `node_types`; edges are grouped by relation, in the
    order of `relations`, and sorted by source within one. No edge occurs twice.
    """

    node_types: tuple[str, ...]  # names
    nodes_per_type: tuple[int, ...]  # in the same order
    node_names: tuple[str, ...]  # such as `asyncio.events:Handle.cancel`
    relations: tuple[Relation, ...]  # (source type, name, target type), indexed by `edge_type`
    edge_index: torch.Tensor  # (2, edges) int64: source ids, target ids
    edge_type: torch.Tensor  # (edges,) int64, ascending
    features: torch.Tensor  # (nodes, 64) float32
    labels: torch.Tensor  # (nodes,) int64; -1 where a node is not a function
    class_names: tuple[str, ...]  # indexed by `labels`
    train: torch.Tensor  # ids of labeled nodes, ascending; the three parts share none
    validation: torch.Tensor  # as `train`
    test: torch.Tensor  # as `train`

    @property
    def num_nodes(self) -> int:
        """Nodes of all types."""
        return sum(self.nodes_per_type)

    @property
    def num_edges(self) -> int:
        """Edges of all relations."""
        return self.edge_type.numel()

    @property
    def num_classes(self) -> int:
        """Classes of the task."""
        return len(self.class_names)

    @property
    def node_type(self) -> torch.Tensor:
        """The type of every node, as a position in `node_types`: (nodes,) int64."""
        return torch.repeat_interleave(
            torch.arange(len(self.node_types), dtype=torch.int64, device="cpu"),
            torch.tensor(self.nodes_per_type, dtype=torch.int64, device="cpu"),
        )

    @property
    def edges_per_relation(self) -> tuple[int, ...]:
        """How many edges each relation has, in the order of `relations`."""
        counts: list[int] = torch.bincount(self.edge_type, minlength=len(self.relations)).tolist()
        return tuple(counts)

    def __repr__(self) -> str:
        return (
            f"PythonGraph({self.num_nodes:,} nodes of {len(self.node_types)} types, "
            f"{self.num_edges:,} edges, {len(self.relations)} relations, {self.num_classes} classes)"
        )

    def nodes_of(self, node_type: str) -> range:
        """The ids of one type's nodes.

        >>> graph = python_graph(limit_modules=40)
        >>> {graph.node_names[node].count(":") for node in graph.nodes_of("function")}
        {1}
        """
        if node_type not in self.node_types:
            raise DatasetError(
                f"expected a node type, one of {', '.join(self.node_types)}; got {node_type!r}."
            )
        at = self.node_types.index(node_type)
        first = sum(self.nodes_per_type[:at])
        return range(first, first + self.nodes_per_type[at])

    def edges_of(self, source: str, name: str, target: str) -> torch.Tensor:
        """The edges of one relation, (2, edges), as a view of `edge_index`.

        >>> graph = python_graph(limit_modules=40)
        >>> callers, called = graph.edges_of("function", "calls", "function")
        >>> bool((graph.labels[called] >= 0).all())
        True

        Args:
            source: Type of the nodes where they begin.
            name: Of the relation.
            target: Type of the nodes where they end.
        """
        wanted = Relation(source, name, target)
        if wanted not in self.relations:
            known = "\n".join(f"  {' '.join(each)}" for each in self.relations)
            raise DatasetError(
                f"expected a relation of the graph, got {' '.join(wanted)!r}. There are:\n{known}"
            )
        first, stop = torch.searchsorted(
            self.edge_type,
            torch.tensor([0, 1], dtype=torch.int64, device="cpu") + self.relations.index(wanted),
        ).tolist()
        return self.edge_index[:, first:stop]

    def with_reversed(self) -> PythonGraph:
        """The same graph with every edge once more, backwards, as `<name>_reversed` relations.

        Messages follow edges, and most edges leave functions: without this a function hears little.
        """
        backwards = tuple(
            Relation(each.target, f"{each.name}_reversed", each.source) for each in self.relations
        )
        edge_type = self.edge_type + len(self.relations)
        edge_index = self.edge_index.flip(0)
        order = np.lexsort((edge_index[1].numpy(), edge_index[0].numpy(), edge_type.numpy()))
        return replace(
            self,
            relations=self.relations + backwards,
            edge_index=torch.cat([self.edge_index, edge_index[:, torch.from_numpy(order)]], dim=1),
            edge_type=torch.cat([self.edge_type, edge_type]),
        )

    def graph(self) -> RelationalGraph:
        """The same nodes, relations and edges as a `sh.RelationalGraph`, with its indexes.

        >>> python_graph(limit_modules=40).graph().relations[0]
        Relation(source_type='module', name='imports', target_type='module')
        """
        from shorthaul.graphs.graph import RelationalGraph
        from shorthaul.graphs.node_names import NodeNames

        return RelationalGraph.from_edges(
            self.edge_index[0],
            self.edge_index[1],
            self.edge_type,
            relations=self.relations,
            nodes_per_type=dict(zip(self.node_types, self.nodes_per_type, strict=True)),
            node_names=NodeNames.of(self.node_names),
        )

    def summary(self) -> str:
        """A few lines to print: sizes, the task, and every relation with its edges."""
        counts = torch.bincount(self.labels[self.labels >= 0], minlength=self.num_classes)
        shares = counts / counts.sum().clamp(min=1)
        lines = [
            f"{self.num_nodes:,} nodes, {self.num_edges:,} edges, {len(self.relations)} relations, "
            f"{self.features.shape[1]} features",
            "nodes:   " + _listed(zip(self.node_types, self.nodes_per_type, strict=True)),
            "classes: "
            + ", ".join(
                f"{name} {share:.1%}"
                for name, share in zip(self.class_names, shares.tolist(), strict=True)
            ),
            "splits:  " + _listed((name, len(getattr(self, name))) for name in SPLITS),
            "edges:",
        ]
        for relation, count in zip(self.relations, self.edges_per_relation, strict=True):
            lines.append(f"  {count:>9,}  {' '.join(relation)}")
        return "\n".join(lines)


def python_graph(limit_modules: int | None = None) -> PythonGraph:
    """The standard library as a relational graph, for node classification.

    >>> graph = python_graph(limit_modules=40)
    >>> graph.class_names[:3]
    ('nothing', 'object', 'truth')

    Built from the installed source in some ten seconds and then cached; `limit_modules` takes that
    many modules, spread over the library, for a smaller graph. Raises `DatasetError` where Python
    has no source.
    """
    if limit_modules is not None and (not isinstance(limit_modules, int) or limit_modules < 1):
        raise DatasetError(
            f"limit_modules must be a positive whole number or None, got {limit_modules!r}."
        )
    listing = list_library(library_directory())
    files = choose_files(listing, limit_modules)
    key: dict[str, object] = {"format": FORMAT, "files": fingerprint(files)}
    return _from_arrays(cached_arrays("python_graph", key, lambda: _build(files)))


def _build(files: tuple[LibraryFile, ...]) -> Arrays:
    modules = [_parse(file) for file in with_progress(files, "reading the standard library")]
    return assemble(modules)


def _parse(file: LibraryFile) -> ModuleSyntax:
    content = file.read()
    try:
        return parse_module(file.name, content, is_package=file.is_package)
    except (SyntaxError, ValueError) as error:
        raise DatasetError(
            f"{file.path} does not parse as Python, though it belongs to the standard library: "
            f"{error}.\n  Repair the installation of Python, or remove the file."
        ) from error


def _from_arrays(arrays: Arrays) -> PythonGraph:
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if name != "names"}
    train, validation, test = (
        torch.nonzero(tensors["splits"] == number)[:, 0] for number in range(len(SPLITS))
    )
    return PythonGraph(
        node_types=NODE_TYPES,
        nodes_per_type=tuple(tensors["nodes_per_type"].tolist()),
        node_names=tuple(arrays["names"].tobytes().decode().split("\n")),
        relations=RELATIONS,
        edge_index=tensors["edge_index"],
        edge_type=tensors["edge_type"],
        features=tensors["features"],
        labels=tensors["labels"],
        class_names=RETURN_KINDS,
        train=train,
        validation=validation,
        test=test,
    )


def _listed(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts)
