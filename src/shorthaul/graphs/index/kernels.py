"""Indexes by parallel counting sort, in generated C++.

A pass deals edges out into rows by one key, in the order in which it meets them, so it is stable, and
two passes sort by two keys. A pass takes with it what the next one will ask of each edge: reading
that by edge id would be a cache miss for every edge, which took twice as long as the sorting.

::

    by_relation   edges as given    --relation-->  edges, with their sources and targets
    by_target     by_relation       --target---->  edges, with their sources and relations
    by_source     by_relation       --source---->  edges, with their targets and relations
    pairs(side)   runs of edges with one relation within a row of `side`  --relation-->  pairs
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    Kernel,
    NumberArgument,
    TensorArgument,
    ThreadsArgument,
    load_kernel,
)
from shorthaul.jit.compiling.loading import gather_pending, load_when_ready
from shorthaul.storage import NO_LIMIT_BYTES, Buffer, BufferPool

# Below this, one allocation after the other is cheaper than a mapping with huge pages.
HUGE_PAGES_FROM_BYTES = 2 * 2**20
# Indexes up to this large leave their memory to the next one: where the system has no huge pages left,
# clearing small ones takes longer than sorting.
KEPT_BYTES = 32 * 2**20
_ALIGNMENT_BYTES = 64

_TEXT = r"""
// Orders of a graph's edges. Index = INDEX_TYPE; pointers have one entry more than there are rows.
#include <algorithm>
#include <atomic>

#include "shorthaul/graphs/index/counting_sort.h"

using Index = INDEX_TYPE;
using shorthaul::chunk_start;
using shorthaul::each_chunk;

namespace {

// Where the rows of a chunk begin: chunks have whole rows and about equally many edges.
int64_t first_row(const Index* pointers, int64_t rows, int64_t chunk, int64_t chunks) {
  if (chunk == 0 || chunk == chunks) return chunk == 0 ? 0 : rows;
  const Index start = static_cast<Index>(chunk_start(pointers[rows], chunk, chunks));
  return std::lower_bound(pointers, pointers + rows, start) - pointers;
}

}  // namespace

// Edges by relation, in the order given, with both their ends.
int32_t sort_relations(const Index* relation, const Index* source, const Index* target, Index* pointers,
                       Index* sorted, Index* sorted_sources, Index* sorted_targets, int64_t edges,
                       int64_t relations_and_one, int64_t threads) {
  const auto start_chunk = [&](int64_t) {
    return [&](int64_t edge, Index position) {
      sorted[position] = static_cast<Index>(edge);
      sorted_sources[position] = source[edge];
      sorted_targets[position] = target[edge];
    };
  };
  // Relations are few: where they are written stays in the cache.
  const auto before = [](Index) {};
  return shorthaul::deal_out(relation, pointers, edges, relations_and_one - 1, threads, start_chunk,
                             before);
}

// Edges that come by relation, now by `keys`; within a row they stay by relation.
int32_t sort_rows(const Index* keys, const Index* ends, const Index* by_relation,
                  const Index* relation_pointers, Index* pointers, Index* sorted_ends,
                  Index* sorted_relations, Index* sorted, int64_t edges, int64_t relations_and_one,
                  int64_t rows_and_one, int64_t threads) {
  const Index* const relations_stop = relation_pointers + relations_and_one;
  const auto start_chunk = [&](int64_t start) {
    // The relation of `start`; from there on it follows from the position.
    Index relation = static_cast<Index>(
        std::upper_bound(relation_pointers, relations_stop, static_cast<Index>(start)) -
        relation_pointers - 1);
    return [&, relation](int64_t item, Index position) mutable {
      while (relation_pointers[relation + 1] <= item) ++relation;
      sorted_ends[position] = ends[item];
      sorted_relations[position] = relation;
      sorted[position] = by_relation[item];
    };
  };
  const auto before = [=](Index position) {
    shorthaul::will_write(sorted_ends + position);
    shorthaul::will_write(sorted_relations + position);
    shorthaul::will_write(sorted + position);
  };
  return shorthaul::deal_out(keys, pointers, edges, rows_and_one - 1, threads, start_chunk, before);
}

// A pair is a run of edges with one relation within a row. How many runs and edges of each relation a
// chunk has -> where its own begin among the pairs and among their edges. Returns the number of pairs.
int64_t count_pairs(const Index* row_pointers, const Index* relations, const Index* relation_pointers,
                    Index* run_counts, Index* edge_counts, Index* pointers, int64_t rows_and_one,
                    int64_t relations_and_one, int64_t chunks, int64_t threads) {
  const int64_t kinds = relations_and_one - 1, rows = rows_and_one - 1;
  each_chunk(chunks, threads, [&](int64_t chunk) {
    Index* const own_runs = run_counts + chunk * kinds;
    Index* const own_edges = edge_counts + chunk * kinds;
    std::fill(own_runs, own_runs + kinds, 0);
    std::fill(own_edges, own_edges + kinds, 0);
    const int64_t stop_row = first_row(row_pointers, rows, chunk + 1, chunks);
    for (int64_t row = first_row(row_pointers, rows, chunk, chunks); row < stop_row; ++row) {
      // Added up without a branch: runs are a few edges long, and where they end is not foreseen.
      Index before = -1;
      for (Index at = row_pointers[row]; at < row_pointers[row + 1]; ++at) {
        own_runs[relations[at]] += relations[at] != before;
        ++own_edges[relations[at]];
        before = relations[at];
      }
    }
  });
  Index pairs = 0;
  for (int64_t relation = 0; relation < kinds; ++relation) {
    pointers[relation] = pairs;
    Index edge = relation_pointers[relation];
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t at = chunk * kinds + relation;
      const Index runs_here = run_counts[at], edges_here = edge_counts[at];
      run_counts[at] = pairs;
      edge_counts[at] = edge;
      pairs += runs_here;
      edge += edges_here;
    }
  }
  pointers[kinds] = pairs;
  return pairs;
}

void fill_pairs(const Index* row_pointers, const Index* relations, const Index* sorted, Index* run_counts,
                Index* edge_counts, Index* nodes, Index* edge_to_pair, Index* pair_pointers,
                Index* pair_edges, int64_t rows_and_one, int64_t edges, int64_t chunks, int64_t kinds,
                int64_t pairs, int64_t threads) {
  const int64_t rows = rows_and_one - 1;
  each_chunk(chunks, threads, [&](int64_t chunk) {
    Index* const next_pair = run_counts + chunk * kinds;
    Index* const next_edge = edge_counts + chunk * kinds;
    const int64_t stop_row = first_row(row_pointers, rows, chunk + 1, chunks);
    for (int64_t row = first_row(row_pointers, rows, chunk, chunks); row < stop_row; ++row) {
      const Index stop = row_pointers[row + 1];
      for (Index at = row_pointers[row]; at < stop;) {
        const Index relation = relations[at], pair = next_pair[relation]++;
        Index position = next_edge[relation];
        nodes[pair] = static_cast<Index>(row);
        pair_pointers[pair] = position;
        do {
          if (at + shorthaul::ahead_items < edges) {
            shorthaul::will_write(edge_to_pair + sorted[at + shorthaul::ahead_items]);
          }
          pair_edges[position++] = sorted[at];
          edge_to_pair[sorted[at]] = pair;
        } while (++at < stop && relations[at] == relation);
        next_edge[relation] = position;
      }
    }
  });
  pair_pointers[pairs] = static_cast<Index>(edges);
}

// The first position whose value is not in 0..limit, or -1.
int64_t find_outside(const Index* values, int64_t limit, int64_t items, int64_t threads) {
  const int64_t chunks = shorthaul::choose_chunks(items, 0, threads);
  std::atomic<int64_t> first{items};
  each_chunk(chunks, threads, [&](int64_t chunk) {
    const int64_t start = chunk_start(items, chunk, chunks), stop = chunk_start(items, chunk + 1, chunks);
    // Without a branch for each value, so that the compiler may take eight at a time.
    bool is_outside = false;
    for (int64_t i = start; i < stop; ++i) is_outside |= (values[i] < 0) | (values[i] >= limit);
    if (!is_outside) return;
    int64_t found = start;
    while (values[found] >= 0 && values[found] < limit) ++found;
    int64_t known = first.load();
    while (found < known && !first.compare_exchange_weak(known, found)) {
    }
  });
  return first == items ? -1 : first.load();
}
"""


class RelationColumns(NamedTuple):
    """Edges by relation, with both ends of each; the fields are those of `RelationIndex`."""

    pointers: torch.Tensor
    edges: torch.Tensor
    sources: torch.Tensor
    targets: torch.Tensor


class RowColumns(NamedTuple):
    """Edges by one end, with the other end, the relation and the id of each."""

    pointers: torch.Tensor
    ends: torch.Tensor
    relations: torch.Tensor
    edges: torch.Tensor


class PairColumns(NamedTuple):
    """Distinct (relation, node) pairs; the fields are those of `PairIndex`."""

    pointers: torch.Tensor
    nodes: torch.Tensor
    edge_to_pair: torch.Tensor
    pair_pointers: torch.Tensor
    pair_edges: torch.Tensor


def emit_index_kernels(dtype: torch.dtype) -> CppSource:
    """The kernels for indexes of `dtype`, int32 or int64."""
    index_type = {torch.int32: "int32_t", torch.int64: "int64_t"}[dtype]
    return CppSource(
        f"graph_index_{index_type.removesuffix('_t')}",
        _TEXT.replace("INDEX_TYPE", index_type),
        (*_sorting_functions(dtype), *_pair_functions(dtype)),
    )


def _sorting_functions(dtype: torch.dtype) -> tuple[Function, ...]:
    def read(name: str, size: str = "edges") -> TensorArgument:
        return TensorArgument(name, dtype, (size,))

    def written(name: str, size: str = "edges") -> TensorArgument:
        return TensorArgument(name, dtype, (size,), is_written=True)

    return (
        Function(
            "sort_relations",
            (
                *map(read, ("relation", "source", "target")),
                written("pointers", "relations_and_one"),
                *map(written, ("sorted", "sorted_sources", "sorted_targets")),
                *map(DimensionArgument, ("edges", "relations_and_one")),
                ThreadsArgument(),
            ),
            returns="status",
        ),
        Function(
            "sort_rows",
            (
                *map(read, ("keys", "ends", "by_relation")),
                read("relation_pointers", "relations_and_one"),
                written("pointers", "rows_and_one"),
                *map(written, ("sorted_ends", "sorted_relations", "sorted")),
                *map(DimensionArgument, ("edges", "relations_and_one", "rows_and_one")),
                ThreadsArgument(),
            ),
            returns="status",
        ),
        Function(
            "find_outside",
            (
                read("values", "items"),
                NumberArgument("limit", "int64"),
                DimensionArgument("items"),
                ThreadsArgument(),
            ),
            returns="int64",
        ),
    )


def _pair_functions(dtype: torch.dtype) -> tuple[Function, ...]:
    def tensor(name: str, *shape: str | None, is_written: bool = True) -> TensorArgument:
        return TensorArgument(name, dtype, shape, is_written=is_written)

    rows = (
        tensor("row_pointers", "rows_and_one", is_written=False),
        tensor("relations", "edges", is_written=False),
    )
    counts = (tensor("run_counts", "chunks", "kinds"), tensor("edge_counts", "chunks", "kinds"))
    return (
        Function(
            "count_pairs",
            (
                *rows,
                tensor("relation_pointers", "relations_and_one", is_written=False),
                *counts,
                tensor("pointers", "relations_and_one"),
                *map(DimensionArgument, ("rows_and_one", "relations_and_one", "chunks")),
                ThreadsArgument(),
            ),
            returns="int64",
        ),
        Function(
            "fill_pairs",
            (
                *rows,
                tensor("sorted", "edges", is_written=False),
                *counts,
                tensor("nodes", "pairs"),
                tensor("edge_to_pair", "edges"),
                tensor("pair_pointers", None),
                tensor("pair_edges", "edges"),
                *map(DimensionArgument, ("rows_and_one", "edges", "chunks", "kinds", "pairs")),
                ThreadsArgument(),
            ),
        ),
    )


def sort_relations(
    relation: torch.Tensor, source: torch.Tensor, target: torch.Tensor, relations: int
) -> RelationColumns:
    """Edges by relation, in the order given."""
    edges = relation.numel()
    found = RelationColumns(*empty_columns(relation.dtype, (relations + 1, edges, edges, edges)))
    _kernel(relation.dtype).sort_relations(relation, source, target, *found)
    return found


def sort_rows(
    keys: torch.Tensor,
    ends: torch.Tensor,
    edges: torch.Tensor,
    relation_pointers: torch.Tensor,
    rows: int,
) -> RowColumns:
    """Edges that come by relation (`keys`, `ends` and ids of each), by key."""
    count = keys.numel()
    found = RowColumns(*empty_columns(keys.dtype, (rows + 1, count, count, count)))
    _kernel(keys.dtype).sort_rows(keys, ends, edges, relation_pointers, *found)
    return found


def find_pairs(
    row_pointers: torch.Tensor,
    relations: torch.Tensor,
    edges: torch.Tensor,
    relation_pointers: torch.Tensor,
) -> PairColumns:
    """The distinct (relation, row) pairs of edges that come by row, then by relation."""
    kernel, dtype, count = _kernel(edges.dtype), edges.dtype, edges.numel()
    kinds = relation_pointers.numel() - 1
    chunks = max(1, min(torch.get_num_threads(), 4 * count // (kinds + 1)))
    run_counts, edge_counts = torch.empty(2, chunks, kinds, dtype=dtype, device="cpu")
    pointers = torch.empty_like(relation_pointers)
    pairs = kernel.count_pairs(
        row_pointers, relations, relation_pointers, run_counts, edge_counts, pointers
    )
    columns = empty_columns(dtype, (pairs, count, pairs + 1, count))
    kernel.fill_pairs(row_pointers, relations, edges, run_counts, edge_counts, *columns)
    return PairColumns(pointers, *columns)


def find_outside(values: torch.Tensor, limit: int) -> int | None:
    """The first position whose value is not in `range(limit)`."""
    position: int = _kernel(values.dtype).find_outside(values, limit)
    return None if position < 0 else position


def empty_columns(dtype: torch.dtype, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Uninitialized vectors of one index, side by side on huge pages where they are large.

    A page of 4 KiB costs some microseconds the first time it is written, which is more than sorting
    the thousand numbers that it holds.
    """
    steps = [-(-size * dtype.itemsize // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for size in sizes]
    total_bytes = sum(steps)
    if total_bytes < HUGE_PAGES_FROM_BYTES:
        return [torch.empty(size, dtype=dtype, device="cpu") for size in sizes]
    columns, offset_bytes = [], 0
    with _take(total_bytes) as buffer:
        for size, step in zip(sizes, steps, strict=True):
            columns.append(buffer.tensor(dtype, (size,), offset_bytes=offset_bytes))
            offset_bytes += step
    return columns


def _take(size_bytes: int) -> Buffer:
    """Memory for an index: that of an earlier one where it is small, as those of mini-batches are."""
    if size_bytes <= KEPT_BYTES:
        return _kept_pool().take(size_bytes)
    # A closed pool keeps nothing: the memory goes back to the system with the last of the vectors.
    with BufferPool(2 * size_bytes, why="graph indexes") as pool:
        return pool.take(size_bytes)


@functools.cache
def _kept_pool() -> BufferPool:
    return BufferPool(NO_LIMIT_BYTES, why="graph indexes")


@functools.cache
def _kernel(dtype: torch.dtype) -> Kernel:
    _ask_for_both()
    return load_kernel(emit_index_kernels(dtype))


@functools.cache
def _ask_for_both() -> None:
    """Have the kernels for both kinds of ids compiled at the same time: ids come as one, indexes are the other."""
    gather_pending(
        [
            functools.partial(load_when_ready, emit_index_kernels(dtype), "waiting for it")
            for dtype in (torch.int64, torch.int32)
        ],
        is_urgent=True,
    )
