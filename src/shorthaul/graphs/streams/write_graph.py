"""Graphs written from chunks of edges, and indexed where they lie: `write_graph` and `add_indexes`.

>>> import tempfile
>>> chunks = [([0, 0], [1, 2]), ([1], [2])]
>>> with tempfile.TemporaryDirectory() as folder:
...     graph = RelationalGraph.open(write_graph(folder, chunks, num_nodes=3), in_memory=True)
...     graph, graph.by_target().sources.tolist()
(RelationalGraph(3 nodes, 3 edges, 1 relation), [0, 0, 1])
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from shorthaul.errors import EdgeRangeError, GraphError
from shorthaul.graphs.declared_types import (
    choose_relations,
    choose_types,
    read_relation_numbers,
    require_joined_types,
)
from shorthaul.graphs.edge_tensors import (
    INT32_LIMIT,
    choose_builder,
    choose_index_dtype,
    read_numbers,
    require_lengths,
)
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.relation import Relation
from shorthaul.graphs.saving import (
    DESCRIPTION,
    EDGES,
    FORMAT,
    INDEXES,
    read_description,
    write_description,
)
from shorthaul.graphs.streams.column_file import ColumnFile
from shorthaul.graphs.streams.external_sort import ORDERS, sort_to_files
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import alone_after_fork
from shorthaul.storage import StorageEngine
from shorthaul.tensors.files.file_writer import FileWriter, engine_for_files
from shorthaul.tensors.progress_bar import progress_bar
from shorthaul.tensors.save_features import HEADER_BYTES, npy_header
from shorthaul.units import parse_bytes

MEMORY = "1GiB"
_SMALLEST_MEMORY_BYTES = 2**16
_STEP_BYTES = 4 * 2**20


@outside_graphs
@alone_after_fork
def write_graph(
    folder: str | os.PathLike[str],
    chunks: Iterable[Any],
    *,
    num_nodes: int | None = None,
    nodes_per_type: Mapping[str, int] | None = None,
    num_relations: int | None = None,
    relations: Sequence[str | tuple[str, str, str]] | None = None,
    num_edges: int | None = None,
    index_dtype: torch.dtype | None = None,
    indexes: Sequence[str] = ("target",),
    memory: int | str = MEMORY,
    progress: bool = True,
) -> Path:
    """Write a graph whose edges come in chunks, and index it, in bounded memory; returns the folder.

    What is written is what `RelationalGraph.save` writes, byte for byte. A run that was stopped leaves no graph, or one
    without the indexes that were not made yet: `add_indexes` makes those.

    Args:
        folder: Where to write; created if missing.
        chunks: `(source, target)` or `(source, target, relation)` of some edges each, with ids of
            all nodes.
        num_nodes: How many nodes there are; None (default) where `nodes_per_type` says it.
        nodes_per_type: Nodes of each type, in the order of the ids; None (default) for one type.
        num_relations: How many relations there are; None (default) for one, or for `relations`.
        relations: Their names, as `RelationalGraph.from_edges` takes them; None (default) for none.
        num_edges: How many edges will come, as far as it is known (default None).
        index_dtype: `torch.int32` or `torch.int64`; None (default) takes int32 where the nodes and
            `num_edges` fit.
        indexes: Some of `target`, `source` and `relation` (default `target`, which sampling reads).
        memory: What sorting may take, beside some 100 MiB for reading and writing (default 1 GiB).
        progress: Whether bars show the progress (default True).
    """
    _require_indexes(indexes)
    memory_bytes = _read_memory(memory)
    if num_nodes is None and nodes_per_type is None:
        raise GraphError(
            "edges that stream past do not tell how many nodes there are: give num_nodes or "
            "nodes_per_type."
        )
    nothing = torch.empty(0, dtype=torch.int64, device="cpu")
    types = choose_types(nodes_per_type, num_nodes, (nothing, nothing), None)
    named = choose_relations(relations, num_relations, None, nothing, tuple(types))
    largest = max(sum(types.values()), num_edges or 0, len(named))
    dtype = choose_index_dtype(index_dtype, largest)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    (place / DESCRIPTION).unlink(missing_ok=True)
    with engine_for_files(None) as engine:
        stream = _EdgeStream(types, named, dtype)
        with progress_bar(f"edges of {place.name}", progress) as bar:
            for chunk in stream.write(place, engine, chunks):
                bar.update(chunk, chunk * 2 * dtype.itemsize, num_edges)
    described = {
        "format": FORMAT,
        "node_types": list(types),
        "nodes_per_type": list(types.values()),
        "relations": [list(each) for each in named],
        "dtype": str(dtype).removeprefix("torch."),
        "num_edges": stream.edges,
        "indexes": [],
        "has_node_names": False,
        "node_data": [],
        "edge_data": {},
        "checksums": stream.checksums,
        "kinds": {},
    }
    write_description(place, described)
    return add_indexes(place, indexes, memory=memory_bytes, progress=progress)


@outside_graphs
@alone_after_fork
def add_indexes(
    folder: str | os.PathLike[str],
    indexes: Sequence[str] = ("target",),
    *,
    memory: int | str = MEMORY,
    progress: bool = True,
) -> Path:
    """Make indexes of a saved graph where it lies, without reading it into memory.

    Those that are there already stay. An index appears when it is whole; what a stopped run left of
    one is made anew.

    Args:
        folder: What `RelationalGraph.save` or `write_graph` wrote.
        indexes: Some of `target`, `source` and `relation` (default `target`, which sampling reads).
        memory: What sorting may take, beside some 100 MiB for reading and writing (default 1 GiB).
        progress: Whether bars show the progress (default True).
    """
    _require_indexes(indexes)
    memory_bytes = _read_memory(memory)
    place = Path(folder)
    described = read_description(place)
    graph = RelationalGraph.open(place)
    for index in [each for each in ORDERS if each in indexes]:
        if index in described["indexes"]:
            continue
        with engine_for_files(None) as engine:
            checksums = sort_to_files(
                graph, index, place, engine, memory_bytes=memory_bytes, progress=progress
            )
        known = {*described["indexes"], index}
        described["indexes"] = [each for each in INDEXES if each in known]
        described["checksums"] = {**described.get("checksums", {}), **checksums}
        write_description(place, described)
    return place


class _EdgeStream:
    """Edges on their way to the three columns of a graph, looked at as they pass."""

    def __init__(
        self, types: Mapping[str, int], relations: Sequence[Relation], dtype: torch.dtype
    ) -> None:
        self.types, self.relations, self.dtype = types, relations, dtype
        self.nodes = sum(types.values())
        self.edges = 0
        self.checksums = dict.fromkeys(EDGES, 0)

    def write(self, folder: Path, engine: StorageEngine, chunks: Iterable[Any]) -> Iterable[int]:
        """Write them all; how many each chunk has."""
        has_relations = len(self.relations) > 1
        names = EDGES if has_relations else EDGES[:2]
        with contextlib.ExitStack() as files:
            writers = {
                name: files.enter_context(
                    FileWriter(folder / f"{name}.npy", engine, _STEP_BYTES, HEADER_BYTES)
                )
                for name in names
            }
            for chunk in chunks:
                columns = self._read(chunk)
                for name, values in zip(EDGES, columns, strict=True):
                    data = values.numpy().data
                    self.checksums[name] = zlib.crc32(data, self.checksums[name])
                    if name in writers:
                        writers[name].append(values)
                self.edges += len(columns[0])
                yield len(columns[0])
            for writer in writers.values():
                writer.finish(npy_header(writer.path, (self.edges,), self.dtype))
        if not has_relations:
            path = folder / f"{EDGES[2]}.npy"
            with ColumnFile(path, self.dtype, self.edges, engine, is_zero=True) as zeros:
                zeros.finish()

    def _read(self, chunk: Any) -> tuple[torch.Tensor, ...]:
        """The columns of a chunk, if all of its edges are some of this graph."""
        if not isinstance(chunk, tuple | list | torch.Tensor) or len(chunk) not in (2, 3):
            raise GraphError(
                "a chunk of edges is (source, target) or (source, target, relation), got "
                f"{type(chunk).__name__} after {self.edges:,} edges."
            )
        ends = read_numbers(chunk[0], "source"), read_numbers(chunk[1], "target")
        relation = read_relation_numbers(chunk[2] if len(chunk) == 3 else None, ends[0])
        require_lengths(source=ends[0], target=ends[1], relation=relation)
        for name, values, limit, counted in (
            ("source", ends[0], self.nodes, "nodes"),
            ("target", ends[1], self.nodes, "nodes"),
            ("relation", relation, len(self.relations), "relations"),
        ):
            at = choose_builder(values).find_outside(values.contiguous(), limit)
            if at is not None:
                raise EdgeRangeError(name, self.edges + at, int(values[at]), limit, counted)
        if len(self.types) > 1:
            require_joined_types(self.types, self.relations, *ends, relation, first_edge=self.edges)
        if self.dtype is torch.int32 and self.edges + len(relation) > INT32_LIMIT:
            raise GraphError(
                f"there are more than {INT32_LIMIT:,} edges, and the graph counts them with int32.\n"
                "  Give num_edges=, or index_dtype=torch.int64."
            )
        return tuple(each.to(self.dtype).contiguous() for each in (*ends, relation))


def _require_indexes(asked: Sequence[str]) -> None:
    for each in asked:
        if each not in ORDERS:
            raise GraphError(
                f"there is no index {each!r} to make out of memory; there are {', '.join(ORDERS)}."
            )


def _read_memory(memory: int | str) -> int:
    memory_bytes = parse_bytes(memory)
    if memory_bytes < _SMALLEST_MEMORY_BYTES:
        raise GraphError(f"memory must be at least 64 KiB, got {memory!r}.")
    return memory_bytes
