"""Graphs on disk: written once, opened without being read, so that they may be larger than memory.

::

    folder/graph.json                 node types, relations, counts and the indexes that are there;
                                      written last, so that a folder without it is not whole
    folder/source.npy, target.npy, relation.npy
    folder/by_target.pointers.npy, by_target.sources.npy, ..
    folder/node_names.text.npy, node_names.offsets.npy
    folder/node_data.time.npy, edge_data.weight.npy, edge_data.stars.3.npy (of relation 3), ..

Everything is JSON or .npy: opening a graph runs no code of the file's. A file is input: what is read
of it is checked as it comes in (`saved_columns`), so that no number that the graph does not have
reaches a kernel; read into memory as a whole, it must also have the checksum that it was saved with.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from shorthaul.errors import GraphError, GraphFileError
from shorthaul.graphs.edge_tensors import INT32_LIMIT, as_plain
from shorthaul.graphs.graph import DOORS, RelationalGraph
from shorthaul.graphs.index.indexes import PairIndex, RelationIndex, SourceIndex, TargetIndex
from shorthaul.graphs.node_names import NodeNames
from shorthaul.graphs.relation import Relation
from shorthaul.graphs.saved_columns import SavedColumns, describe_kind, sum_up
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import alone_after_fork
from shorthaul.tensors.files.formats import find_layout
from shorthaul.tensors.save_features import save_features
from shorthaul.tensors.unified_tensor import UnifiedTensor

FORMAT = 1
DESCRIPTION = "graph.json"
EDGES = ("source", "target", "relation")
DATA = ("node_data.", "edge_data.")
# By the names under which a graph keeps them: the class, and the name in files.
INDEXES: dict[str, tuple[type, str]] = {
    "relation": (RelationIndex, "by_relation"),
    "target": (TargetIndex, "by_target"),
    "source": (SourceIndex, "by_source"),
    "pairs_source": (PairIndex, "pairs_source"),
    "pairs_target": (PairIndex, "pairs_target"),
}
_DTYPES = {"int32": torch.int32, "int64": torch.int64}


@outside_graphs
@alone_after_fork
def save_graph(
    graph: RelationalGraph,
    folder: str | os.PathLike[str],
    indexes: Sequence[str] | None = None,
    *,
    progress: bool = True,
) -> Path:
    """Write `graph` to `folder`, with the named indexes, else those built so far and `target`."""
    place = Path(folder)
    named = _choose_indexes(graph, indexes)
    _require_elsewhere(graph, place)
    parts = dict(_list_parts(graph, named))
    place.mkdir(parents=True, exist_ok=True)
    (place / DESCRIPTION).unlink(missing_ok=True)
    checksums: dict[str, int] = {}
    kinds: dict[str, str] = {}
    for name, tensor in parts.items():
        rows, found = tensor.shape[0], list[int]()
        chunks = sum_up(_chunks_of(tensor), found)
        save_features(place / f"{name}.npy", chunks, rows=rows, progress=progress)
        checksums[name] = found[0]
        if name.startswith(DATA):
            kinds[name] = describe_kind(find_layout(place / f"{name}.npy"))
    described = {
        "format": FORMAT,
        "node_types": list(graph.node_types),
        "nodes_per_type": list(graph.nodes_per_type),
        "relations": [list(each) for each in graph.relations],
        "dtype": str(graph.index_dtype).removeprefix("torch."),
        "num_edges": graph.num_edges,
        "indexes": named,
        "has_node_names": graph.node_names is not None,
        "node_data": list(graph.node_data),
        "edge_data": {
            name: None if isinstance(rows, torch.Tensor) else [*map(graph.relations.index, rows)]
            for name, rows in graph.edge_data.items()
        },
        "checksums": checksums,
        "kinds": kinds,
    }
    write_description(place, described)
    return place


def write_description(folder: Path, described: Mapping[str, Any]) -> None:
    """Say what lies in `folder`: from now on it is a graph."""
    unfinished = folder / f"{DESCRIPTION}.unfinished"
    try:
        unfinished.write_text(json.dumps(described, indent=1, ensure_ascii=False), encoding="utf-8")
        unfinished.replace(folder / DESCRIPTION)
    finally:
        unfinished.unlink(missing_ok=True)


@outside_graphs
@alone_after_fork
def open_graph(
    folder: str | os.PathLike[str], *, in_memory: bool = False, mapped: bool = False
) -> RelationalGraph:
    """The graph in `folder`, its tensors on disk until they are asked for, or mapped, or read now."""
    if in_memory and mapped:
        raise GraphError("a graph is read into memory or mapped: give `in_memory` or `mapped`.")
    place = Path(folder)
    described = read_description(place)
    columns = SavedColumns(
        place,
        _DTYPES[described["dtype"]],
        sum(described["nodes_per_type"]),
        len(described["relations"]),
        described["num_edges"],
        described.get("checksums", {}),
        described.get("kinds", {}),
        in_memory,
        mapped,
    )
    source, target, relation = map(columns.open_edges, EDGES)
    relations = tuple(Relation(*each) for each in described["relations"])
    graph = RelationalGraph(
        tuple(described["node_types"]),
        tuple(described["nodes_per_type"]),
        relations,
        source,
        target,
        relation,
        columns.open_names() if described["has_node_names"] else None,
        node_data={
            name: columns.open_data(f"node_data.{name}", columns.nodes)
            for name in described.get("node_data", ())
        },
        edge_data={
            name: columns.open_data(f"edge_data.{name}", columns.edges)
            if numbers is None
            else {
                relations[each]: columns.open_data(f"edge_data.{name}.{each}") for each in numbers
            }
            for name, numbers in described.get("edge_data", {}).items()
        },
    )
    if in_memory and len(graph.node_types) > 1:
        graph._require_types()
    for index in described["indexes"]:
        kind, prefix = INDEXES[index]
        names = [each.name for each in fields(kind)]
        graph.indexes[index] = kind(**columns.open_index(kind, prefix, names))
    return graph


def _choose_indexes(graph: RelationalGraph, asked: Sequence[str] | None) -> list[str]:
    if asked is None:
        return [name for name in INDEXES if name == "target" or name in graph.indexes]
    for each in asked:
        if each not in INDEXES:
            raise GraphError(f"there is no index {each!r} to save; there are {', '.join(INDEXES)}.")
    return [name for name in INDEXES if name in asked]


def _list_parts(
    graph: RelationalGraph, indexes: Sequence[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor with the name of its file; the indexes are built here where they are not yet."""
    built: dict[str, Callable[[], object]] = {
        "relation": graph.by_relation,
        "target": graph.by_target,
        "source": graph.by_source,
        "pairs_source": lambda: graph.pairs("source"),
        "pairs_target": lambda: graph.pairs("target"),
    }
    for index in indexes:
        for name, tensor in vars(built[index]()).items():
            yield f"{INDEXES[index][1]}.{name}", tensor
    for name in EDGES:
        yield name, getattr(graph, name)
    if graph.node_names is not None:
        names = graph.node_names
        packed = names if isinstance(names, NodeNames) else NodeNames.of(names)
        yield "node_names.text", packed.text
        yield "node_names.offsets", packed.offsets
    for name, values in graph.node_data.items():
        yield f"node_data.{name}", values
    for name, rows in graph.edge_data.items():
        if isinstance(rows, torch.Tensor):
            yield f"edge_data.{name}", rows
            continue
        for relation, part in rows.items():
            yield f"edge_data.{name}.{graph.relations.index(relation)}", part


def _chunks_of(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """The numbers, a part at a time where they lie on disk; at least one part."""
    if isinstance(tensor, UnifiedTensor) and tensor.shape[0]:
        return tensor.chunks()
    return [as_plain(tensor)]


def _require_elsewhere(graph: RelationalGraph, folder: Path) -> None:
    """A graph that is read from `folder` cannot be written over itself."""
    if isinstance(graph.source, UnifiedTensor) and graph.source.kind == "disk":
        layout = getattr(graph.source.table, "layout", None)
        if layout is not None and Path(layout.path).resolve().parent == folder.resolve():
            raise GraphError(
                f"the graph is read from {folder}, so it cannot be saved there.\n"
                "  Save it to another folder, or open it with in_memory=True first."
            )


def read_description(folder: Path) -> dict[str, Any]:
    """What `write_description` wrote, every entry of it looked at."""
    path = folder / DESCRIPTION
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise GraphFileError(
            path, None, "is missing: no graph was saved here, or saving did not finish."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise GraphFileError(path, None, f"cannot be read: {error}.") from error
    found = described.get("format") if isinstance(described, dict) else None
    if found != FORMAT:
        raise GraphFileError(path, None, f"expected format {FORMAT}, got {found!r}.")
    problem = _find_problem(described)
    if problem:
        raise GraphFileError(path, None, f"its {problem} cannot be used.")
    return dict(described)


def _find_problem(described: Mapping[str, Any]) -> str:
    """The first entry that is not what `save_graph` writes."""

    def is_list(name: str, is_right: Any) -> bool:
        return isinstance(described.get(name), list) and all(map(is_right, described[name]))

    def is_count(value: Any) -> bool:
        return type(value) is int and 0 <= value <= largest

    def is_relation(value: Any) -> bool:
        is_words = isinstance(value, list) and [type(each) for each in value] == [str] * 3
        return is_words and {value[0], value[2]} <= set(described["node_types"])

    def is_known(value: Any, known: Mapping[str, Any]) -> bool:
        return isinstance(value, str) and value in known

    def is_mapping(name: str, to: type) -> bool:
        value = described.get(name, {})
        return isinstance(value, dict) and all(type(each) is to for each in value.values())

    def is_numbers(value: Any) -> bool:
        relations = range(len(described["relations"]))
        return value is None or (
            isinstance(value, list)
            and all(type(each) is int and each in relations for each in value)
            and len(set(value)) == len(value)
        )

    def is_data() -> bool:
        nodes, edges = described.get("node_data", []), described.get("edge_data", {})
        if not isinstance(nodes, list) or not isinstance(edges, dict):
            return False
        are_names = all(isinstance(each, str) and each.isidentifier() for each in (*nodes, *edges))
        return are_names and all(map(is_numbers, edges.values()))

    largest = INT32_LIMIT if described.get("dtype") == "int32" else 2**63 - 2
    checks: dict[str, Callable[[], bool]] = {
        "dtype": lambda: is_known(described.get("dtype"), _DTYPES),
        "node_types": lambda: (
            is_list("node_types", lambda each: isinstance(each, str))
            and len(set(described["node_types"])) == len(described["node_types"])
        ),
        "nodes_per_type": lambda: (
            is_list("nodes_per_type", is_count)
            and len(described["nodes_per_type"]) == len(described["node_types"])
            and is_count(sum(described["nodes_per_type"]))
        ),
        "relations": lambda: (
            is_list("relations", is_relation)
            and len(set(map(tuple, described["relations"]))) == len(described["relations"])
        ),
        "num_edges": lambda: is_count(described.get("num_edges")),
        "indexes": lambda: is_list("indexes", lambda each: is_known(each, INDEXES)),
        "has_node_names": lambda: isinstance(described.get("has_node_names"), bool),
        "node_data` or `edge_data": is_data,
        "checksums": lambda: is_mapping("checksums", int),
        "kinds": lambda: is_mapping("kinds", str),
    }
    # In this order: what comes later looks at what was found right before.
    return next((f"`{name}`" for name, is_right in checks.items() if not is_right()), "")


DOORS.update(save_graph=save_graph, open_graph=open_graph)
