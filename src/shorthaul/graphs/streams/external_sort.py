"""Indexes of graphs that do not fit in memory: an external counting sort, bucket by bucket.

::

    count    key of each edge           -> edges of each block of keys -> buckets that fit in memory
    deal out key, carried columns, id   -> where the edge's bucket lies in the index's own files, and its
                                           key beside them; in the order given
    sort     one bucket after another   -> the same place, in order

Two readings of the edges and one of the files made from them. Dealing out is a counting sort of a chunk of edges by
bucket, and a bucket is sorted by the very kernels that sort graphs in memory, so the numbers are the
same, bit for bit. Edges with one and the same key are in order already when they are dealt out: a node with more
edges than memory holds is no trouble.
"""

from __future__ import annotations

import contextlib
import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from shorthaul.errors import GraphError, GraphFileError
from shorthaul.graphs.edge_tensors import choose_builder, group_by_relation
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.streams.buckets import (
    Blocks,
    Buckets,
    find_finer_blocks,
    plan_blocks,
    plan_buckets,
)
from shorthaul.graphs.streams.column_file import ColumnFile
from shorthaul.storage import StorageEngine
from shorthaul.tensors.progress_bar import Bar, progress_bar
from shorthaul.tensors.unified_tensor import UnifiedTensor

# What an edge takes while its bucket is sorted, in numbers of the graph's dtype: what is read, what
# is made of it, and counts of rows by thread.
NUMBERS_PER_EDGE = 20
_MOST_BLOCKS = 2**16
_CHUNK_EDGES = 2**22
_SUMMED_NUMBERS = 2**22


@dataclass(frozen=True)
class Order:
    """What an index is sorted by, and the columns that its edges take along."""

    prefix: str  # of its files
    key: str
    carried: tuple[str, str]
    names: tuple[str, str]  # of what is carried, in the index


ORDERS = {
    "relation": Order("by_relation", "relation", ("source", "target"), ("sources", "targets")),
    "target": Order("by_target", "target", ("source", "relation"), ("sources", "relations")),
    "source": Order("by_source", "source", ("target", "relation"), ("targets", "relations")),
}


def sort_to_files(
    graph: RelationalGraph,
    index: str,
    folder: Path,
    engine: StorageEngine,
    *,
    memory_bytes: int,
    progress: bool = True,
) -> dict[str, int]:
    """Write the files of `index`, one of `ORDERS`; their checksums by name.

    Beside `memory_bytes` there are the buffers of what is read and written, some 100 MiB.
    """
    sorting = _Sorting(graph, ORDERS[index], memory_bytes)
    # Counted, dealt out and sorted: each edge is met three times.
    with progress_bar(f"{ORDERS[index].prefix} of {graph.num_edges:,} edges", progress) as bar:
        buckets = sorting.plan(bar)
        with contextlib.ExitStack() as files:
            columns = _Columns.open(files, sorting, folder, engine)
            sorting.deal_out(buckets, columns, bar)
            checksums = sorting.sort(buckets, columns, bar)
            columns.finish()
    return checksums


@dataclass(frozen=True, eq=False)
class _Columns:
    """The files of an index, and the one of keys that is there until they are sorted."""

    keys: ColumnFile
    carried: tuple[ColumnFile, ColumnFile]
    edges: ColumnFile
    pointers: ColumnFile

    @classmethod
    def open(
        cls, files: contextlib.ExitStack, sorting: _Sorting, folder: Path, engine: StorageEngine
    ) -> _Columns:
        order, dtype, edges = sorting.order, sorting.graph.index_dtype, sorting.graph.num_edges

        def column(name: str, count: int = edges, *, is_zero: bool = False) -> ColumnFile:
            path = folder / f"{order.prefix}.{name}.npy"
            return files.enter_context(ColumnFile(path, dtype, count, engine, is_zero=is_zero))

        one, other = order.names
        return cls(
            column("keys"),
            (column(one), column(other, is_zero=sorting.has_one_relation)),
            column("edges"),
            column("pointers", sorting.rows + 1),
        )

    def finish(self) -> None:
        for each in (*self.carried, self.edges, self.pointers):
            each.finish()


class _Sorting:
    """One index being made."""

    def __init__(self, graph: RelationalGraph, order: Order, memory_bytes: int) -> None:
        self.graph, self.order = graph, order
        self.is_by_relation = order.key == "relation"
        # Within a row edges lie by relation: the two together are one key.
        self.kinds = 1 if self.is_by_relation else max(1, graph.num_relations)
        self.rows = graph.num_relations if self.is_by_relation else graph.num_nodes
        self.has_one_relation = not self.is_by_relation and graph.num_relations <= 1
        if self.rows * self.kinds >= 2**62:
            raise GraphError(
                f"{graph.num_nodes:,} nodes with {graph.num_relations:,} relations are more than can be "
                "sorted out of memory."
            )
        self.most_edges = max(1, memory_bytes // (NUMBERS_PER_EDGE * graph.index_dtype.itemsize))

    def plan(self, bar: Bar) -> Buckets:
        """Which edges are sorted together, after counting them."""
        blocks: Blocks | None = plan_blocks(self.rows * self.kinds, _MOST_BLOCKS)
        while blocks is not None:
            found = blocks
            counts = torch.zeros(len(found.starts) - 1, dtype=torch.int64, device="cpu")
            for start, stop in self._chunks():
                keys = self._read(self.order.key, start, stop)
                kinds = None if self.kinds == 1 else self._read("relation", start, stop)
                counts += found.count(self._join(keys, kinds))
                self._tell(bar, stop - start)
            blocks = find_finer_blocks(found, counts, self.most_edges)
        return plan_buckets(
            found, counts, most_edges=self.most_edges, most_keys=self.most_edges * self.kinds
        )

    def deal_out(self, buckets: Buckets, columns: _Columns, bar: Bar) -> None:
        """Every edge to where its bucket lies."""
        dtype, one, other = self.graph.index_dtype, *self.order.carried
        filled, count = buckets.edges[:-1].clone(), len(buckets.blocks.starts) - 1
        for start, stop in self._chunks():
            keys, first = self._read(self.order.key, start, stop), self._read(one, start, stop)
            second = None if self.has_one_relation else self._read(other, start, stop)
            joined = self._join(keys, second)
            numbers = buckets.blocks.number(joined).to(dtype)
            dealt = choose_builder(keys).sort_relations(numbers, first, keys, count)
            for each in (columns.keys, *columns.carried, columns.edges):
                each.settle()  # of the chunk before, whose memory is free then
            columns.keys.write_runs(filled, dealt.targets, dealt.pointers)
            columns.carried[0].write_runs(filled, dealt.sources, dealt.pointers)
            if second is not None:
                moved = second.index_select(0, dealt.edges)
                columns.carried[1].write_runs(filled, moved, dealt.pointers)
            columns.edges.write_runs(filled, dealt.edges + start, dealt.pointers)
            filled += dealt.pointers.diff()
            self._tell(bar, stop - start)
        for each in (columns.keys, *columns.carried, columns.edges):
            each.settle()
        if not torch.equal(filled, buckets.edges[1:]):
            raise self._changed()

    def sort(self, buckets: Buckets, columns: _Columns, bar: Bar) -> dict[str, int]:
        """One bucket after another; the checksums of the columns."""
        ends, dtype = buckets.edges.tolist(), self.graph.index_dtype
        sums = dict.fromkeys(("pointers", *self.order.names, "edges"), 0)
        named = dict(zip(self.order.names, columns.carried, strict=True)) | {"edges": columns.edges}
        for bucket, (start, stop) in enumerate(itertools.pairwise(ends)):
            low, high = (int(each) for each in buckets.blocks.starts[bucket : bucket + 2])
            first, last = low // self.kinds, -(-high // self.kinds)
            if high - low > 1 and stop > start:
                made = self._sort_bucket(columns, start, stop, first, last - first)
                for (name, column), values in zip(named.items(), made[1:], strict=True):
                    if not column.is_zero:
                        column.write(start, values)
                    sums[name] = _add_up(values, sums[name])
                pointers = made[0]
            else:  # edges of one key, however many, lie in order
                for name, column in named.items():
                    for begin in range(start, stop, _SUMMED_NUMBERS):
                        part = column.read(begin, min(begin + _SUMMED_NUMBERS, stop))
                        sums[name] = _add_up(part, sums[name])
                pointers = torch.zeros(last - first + 1, dtype=dtype, device="cpu")
                pointers[1:] = stop - start
            # A row that began in an earlier bucket has its number from there.
            skipped = int(first * self.kinds < low)
            begins = pointers[skipped:-1] + start
            columns.pointers.write(first + skipped, begins)
            sums["pointers"] = _add_up(begins, sums["pointers"])
            for each in (*columns.carried, columns.edges, columns.pointers):
                each.settle()
            self._tell(bar, stop - start)
        end = torch.tensor([self.graph.num_edges], dtype=dtype, device="cpu")
        columns.pointers.write(self.rows, end)
        sums["pointers"] = _add_up(end, sums["pointers"])
        return {f"{self.order.prefix}.{name}": each for name, each in sums.items()}

    def _sort_bucket(
        self, columns: _Columns, start: int, stop: int, first: int, rows: int
    ) -> tuple[torch.Tensor, ...]:
        """The edges from `start` to `stop` in order: where rows begin, what is carried, and ids."""
        keys = columns.keys.read(start, stop) - first
        one = columns.carried[0].read(start, stop)
        zeros = torch.zeros_like(keys) if self.has_one_relation else None
        other = columns.carried[1].read(start, stop) if zeros is None else zeros
        ids, builder = columns.edges.read(start, stop), choose_builder(keys)
        # Others might have written to the files meanwhile, and kernels take numbers for places.
        if builder.find_outside(keys, rows) is not None:
            raise self._changed()
        if self.is_by_relation:
            pointers, places, sources, targets = builder.sort_relations(keys, one, other, rows)
            return pointers, sources, targets, ids.index_select(0, places)
        if builder.find_outside(other, self.kinds) is not None:
            raise self._changed()
        grouped = group_by_relation(other, one, keys, self.kinds)
        pointers, places, ends, rows_of = grouped
        made = builder.sort_rows(rows_of, ends, places, pointers, rows)
        return made.pointers, made.ends, made.relations, ids.index_select(0, made.edges)

    def _join(self, keys: torch.Tensor, kinds: torch.Tensor | None) -> torch.Tensor:
        whole = keys.long()
        return whole if self.kinds == 1 or kinds is None else whole * self.kinds + kinds

    def _chunks(self) -> Iterator[tuple[int, int]]:
        edges, step = self.graph.num_edges, max(1, min(_CHUNK_EDGES, self.most_edges))
        return ((start, min(start + step, edges)) for start in range(0, edges, step))

    def _read(self, name: str, start: int, stop: int) -> torch.Tensor:
        column: torch.Tensor = getattr(self.graph, name)
        if isinstance(column, UnifiedTensor):
            return column.table.read(start, stop)
        return column[start:stop]

    def _tell(self, bar: Bar, edges: int) -> None:
        bar.update(edges, edges * self.graph.index_dtype.itemsize, 3 * self.graph.num_edges)

    def _changed(self) -> GraphFileError:
        source = self.graph.source
        layout = (
            getattr(source.table, "layout", None) if isinstance(source, UnifiedTensor) else None
        )
        place = "the graph" if layout is None else layout.path
        return GraphFileError(
            place,
            None,
            "changed while its edges were sorted.\n  Sort it again, and write nothing there.",
        )


def _add_up(values: torch.Tensor, checksum: int) -> int:
    return zlib.crc32(values.contiguous().numpy().data, checksum)
