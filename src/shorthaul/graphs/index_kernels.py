"""Indexes by parallel counting sort, in generated C++.

A pass deals edges out into rows by one key, in the order in which it meets them, so it is stable and
two passes sort by two keys. Each chunk of edges is counted alone and knows, before any edge moves,
where in every row its own edges begin: any number of threads writes the same bytes.

::

    by_relation      edges as given       --relation-->  edges
    by_target        by_relation.edges    --target---->  edges, and with them sources and relations
    pairs("source")  edges by source      --relation-->  pair_edges, and a pair begins where the
                                                         source or the relation changes
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
from shorthaul.storage import BufferPool

# Below this, one allocation after the other is cheaper than a mapping with huge pages.
HUGE_PAGES_FROM_BYTES = 2 * 2**20
_ALIGNMENT_BYTES = 64

_TEXT = r"""
// Counting sort of edges into rows. Index = INDEX_TYPE.
#include <atomic>
#include <cstdlib>
#include <memory>

#include "shorthaul/parallel.h"

namespace {

using Index = INDEX_TYPE;

constexpr int64_t smallest_chunk = 4096;
constexpr int32_t out_of_memory = 1;

// Chunk c of n items is [n * c / chunks, n * (c + 1) / chunks).
int64_t chunk_edge(int64_t items, int64_t chunk, int64_t chunks) {
  return static_cast<int64_t>(static_cast<__int128>(items) * chunk / chunks);
}

template <class Body>
void each_chunk(int64_t chunks, int64_t threads, const Body& body) {
  shorthaul::on_each_thread(threads < chunks ? threads : chunks, [&](int64_t thread, int64_t team) {
    for (int64_t chunk = thread; chunk < chunks; chunk += team) body(chunk);
  });
}

int64_t choose_chunks(int64_t items, int64_t rows, int64_t threads) {
  int64_t chunks = items / smallest_chunk + 1;
  if (chunks > threads) chunks = threads;
  // Counts are kept per chunk and row: with many rows and few edges they would outgrow the edges.
  const int64_t affordable = 1 + 4 * items / (rows + 1);
  return chunks < affordable ? chunks : affordable;
}

// Deals items out into rows, each to row_of(item), by calling move(item, its position); `pointers` gets
// where each row begins.
template <class RowOf, class Move>
int32_t deal_out(int64_t items, int64_t rows, int64_t threads, Index* pointers, const RowOf& row_of,
                 const Move& move) {
  const int64_t chunks = choose_chunks(items, rows, threads);
  struct Free { void operator()(Index* memory) const { std::free(memory); } };
  std::unique_ptr<Index, Free> counts(
      static_cast<Index*>(std::calloc(static_cast<size_t>(chunks * rows + chunks + 1), sizeof(Index))));
  if (!counts) return out_of_memory;
  Index* const block_totals = counts.get() + chunks * rows;
  // 1. Each chunk counts its items of every row.
  each_chunk(chunks, threads, [&](int64_t chunk) {
    Index* const own = counts.get() + chunk * rows;
    const int64_t stop = chunk_edge(items, chunk + 1, chunks);
    for (int64_t item = chunk_edge(items, chunk, chunks); item < stop; ++item) ++own[row_of(item)];
  });
  // 2. Counts become positions: rows in order, and within a row the chunks in order.
  each_chunk(chunks, threads, [&](int64_t block) {
    Index total = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const Index* const own = counts.get() + chunk * rows;
      const int64_t stop = chunk_edge(rows, block + 1, chunks);
      for (int64_t row = chunk_edge(rows, block, chunks); row < stop; ++row) total += own[row];
    }
    block_totals[block] = total;
  });
  Index before = 0;
  for (int64_t block = 0; block < chunks; ++block) {
    const Index total = block_totals[block];
    block_totals[block] = before;
    before += total;
  }
  each_chunk(chunks, threads, [&](int64_t block) {
    Index position = block_totals[block];
    const int64_t stop = chunk_edge(rows, block + 1, chunks);
    for (int64_t row = chunk_edge(rows, block, chunks); row < stop; ++row) {
      pointers[row] = position;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        Index& count = counts.get()[chunk * rows + row];
        const Index here = count;
        count = position;
        position += here;
      }
    }
  });
  pointers[rows] = static_cast<Index>(items);
  // 3. Each chunk moves its items.
  each_chunk(chunks, threads, [&](int64_t chunk) {
    Index* const next = counts.get() + chunk * rows;
    const int64_t stop = chunk_edge(items, chunk + 1, chunks);
    for (int64_t item = chunk_edge(items, chunk, chunks); item < stop; ++item) {
      move(item, next[row_of(item)]++);
    }
  });
  return 0;
}

// Calls visit(i, whether a pair begins at i) for each i of one chunk.
template <class Visit>
void each_pair_start(const Index* nodes, const Index* relation, const Index* sorted, int64_t edges,
                     int64_t chunk, int64_t chunks, const Visit& visit) {
  const int64_t begin = chunk_edge(edges, chunk, chunks), end = chunk_edge(edges, chunk + 1, chunks);
  Index node = begin == 0 ? -1 : nodes[sorted[begin - 1]];
  Index kind = begin == 0 ? -1 : relation[sorted[begin - 1]];
  for (int64_t i = begin; i < end; ++i) {
    const Index here = nodes[sorted[i]], here_kind = relation[sorted[i]];
    visit(i, here != node || here_kind != kind);
    node = here;
    kind = here_kind;
  }
}

}  // namespace

// sorted = the items of `order` (or 0, 1, 2, .. without one), dealt out by keys[item].
int32_t sort_edges(const Index* keys, const Index* order, Index* pointers, Index* sorted,
                   int64_t edges, int64_t rows_and_one, int64_t threads) {
  const int64_t rows = rows_and_one - 1;
  if (order == nullptr) {
    return deal_out(edges, rows, threads, pointers, [&](int64_t item) { return keys[item]; },
                    [&](int64_t item, Index position) { sorted[position] = static_cast<Index>(item); });
  }
  return deal_out(edges, rows, threads, pointers, [&](int64_t item) { return keys[order[item]]; },
                  [&](int64_t item, Index position) { sorted[position] = order[item]; });
}

// Rows of edges by `keys`, within a row in the order of `order`, with each edge's other end and
// relation beside it.
int32_t sort_rows(const Index* keys, const Index* other_ends, const Index* relation, const Index* order,
                  Index* pointers, Index* sorted_ends, Index* sorted_relations, Index* sorted,
                  int64_t edges, int64_t rows_and_one, int64_t threads) {
  const int64_t rows = rows_and_one - 1;
  const auto move = [&](Index edge, Index position) {
    sorted[position] = edge;
    sorted_ends[position] = other_ends[edge];
    sorted_relations[position] = relation[edge];
  };
  if (order == nullptr) {
    return deal_out(edges, rows, threads, pointers, [&](int64_t item) { return keys[item]; },
                    [&](int64_t item, Index position) { move(static_cast<Index>(item), position); });
  }
  return deal_out(edges, rows, threads, pointers, [&](int64_t item) { return keys[order[item]]; },
                  [&](int64_t item, Index position) { move(order[item], position); });
}

// `sorted` holds edges by relation, then by node: a pair begins wherever one of the two changes.
// starts[c] = pairs that begin before chunk c; the last is the number of pairs.
void count_pairs(const Index* nodes, const Index* relation, const Index* sorted, int64_t* starts,
                 int64_t edges, int64_t chunks_and_one, int64_t threads) {
  const int64_t chunks = chunks_and_one - 1;
  each_chunk(chunks, threads, [&](int64_t chunk) {
    int64_t found = 0;
    each_pair_start(nodes, relation, sorted, edges, chunk, chunks,
                    [&](int64_t, bool begins) { found += begins; });
    starts[chunk + 1] = found;
  });
  starts[0] = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) starts[chunk + 1] += starts[chunk];
}

// pointers: pairs before each relation, found from the first pair of every relation that has one.
void fill_pairs(const Index* nodes, const Index* relation, const Index* sorted, const int64_t* starts,
                const Index* relation_pointers, Index* pointers, Index* pair_nodes,
                Index* edge_to_pair, Index* pair_pointers, int64_t edges, int64_t pairs,
                int64_t chunks_and_one, int64_t relations_and_one, int64_t threads) {
  const int64_t chunks = chunks_and_one - 1;
  each_chunk(chunks, threads, [&](int64_t chunk) {
    int64_t pair = starts[chunk] - 1;
    each_pair_start(nodes, relation, sorted, edges, chunk, chunks, [&](int64_t i, bool begins) {
      if (begins) {
        ++pair;
        pair_nodes[pair] = nodes[sorted[i]];
        pair_pointers[pair] = static_cast<Index>(i);
      }
      edge_to_pair[sorted[i]] = static_cast<Index>(pair);
    });
  });
  pair_pointers[pairs] = static_cast<Index>(edges);
  for (int64_t each = 0; each < relations_and_one; ++each) {
    const Index first = relation_pointers[each];
    pointers[each] = first == edges ? static_cast<Index>(pairs) : edge_to_pair[sorted[first]];
  }
}

// The first position whose value is not in 0..limit, or -1.
int64_t find_outside(const Index* values, int64_t limit, int64_t items, int64_t threads) {
  const int64_t chunks = choose_chunks(items, 0, threads);
  std::atomic<int64_t> first{items};
  each_chunk(chunks, threads, [&](int64_t chunk) {
    const int64_t begin = chunk_edge(items, chunk, chunks), end = chunk_edge(items, chunk + 1, chunks);
    // Without a branch for each value, so that the compiler may take eight at a time.
    bool is_outside = false;
    for (int64_t i = begin; i < end; ++i) is_outside |= (values[i] < 0) | (values[i] >= limit);
    if (!is_outside) return;
    int64_t found = begin;
    while (values[found] >= 0 && values[found] < limit) ++found;
    int64_t known = first.load();
    while (found < known && !first.compare_exchange_weak(known, found)) {}
  });
  return first == items ? -1 : first.load();
}
"""


class Rows(NamedTuple):
    """Edges by one end, with the other end, the relation and the id of each."""

    pointers: torch.Tensor
    ends: torch.Tensor
    relations: torch.Tensor
    edges: torch.Tensor


class Pairs(NamedTuple):
    """Distinct (relation, node) pairs; the fields are those of `PairIndex`."""

    pointers: torch.Tensor
    nodes: torch.Tensor
    edge_to_pair: torch.Tensor
    pair_pointers: torch.Tensor


def emit_index_kernels(dtype: torch.dtype) -> CppSource:
    """The kernels for indexes of `dtype`, int32 or int64."""

    def tensor(name: str, size: str, **options: bool) -> TensorArgument:
        return TensorArgument(name, dtype, (size,), **options)

    edges, threads = DimensionArgument("edges"), ThreadsArgument()
    order = tensor("order", "edges", is_optional=True)
    pointers = tensor("pointers", "rows_and_one", is_written=True)
    sorted_edges = tensor("sorted", "edges", is_written=True)
    pair_inputs = (tensor("nodes", "edges"), tensor("relation", "edges"), tensor("sorted", "edges"))
    rows_and_one, chunks_and_one = (
        DimensionArgument("rows_and_one"),
        DimensionArgument("chunks_and_one"),
    )
    functions = (
        Function(
            "sort_edges",
            (tensor("keys", "edges"), order, pointers, sorted_edges, edges, rows_and_one, threads),
            returns="status",
        ),
        Function(
            "sort_rows",
            (
                tensor("keys", "edges"),
                tensor("other_ends", "edges"),
                tensor("relation", "edges"),
                order,
                pointers,
                tensor("sorted_ends", "edges", is_written=True),
                tensor("sorted_relations", "edges", is_written=True),
                sorted_edges,
                edges,
                rows_and_one,
                threads,
            ),
            returns="status",
        ),
        Function(
            "count_pairs",
            (
                *pair_inputs,
                TensorArgument("starts", torch.int64, ("chunks_and_one",), is_written=True),
                edges,
                chunks_and_one,
                threads,
            ),
        ),
        Function(
            "fill_pairs",
            (
                *pair_inputs,
                TensorArgument("starts", torch.int64, ("chunks_and_one",)),
                tensor("relation_pointers", "relations_and_one"),
                tensor("pointers", "relations_and_one", is_written=True),
                tensor("pair_nodes", "pairs", is_written=True),
                tensor("edge_to_pair", "edges", is_written=True),
                TensorArgument("pair_pointers", dtype, (None,), is_written=True),
                edges,
                DimensionArgument("pairs"),
                chunks_and_one,
                DimensionArgument("relations_and_one"),
                threads,
            ),
        ),
        Function(
            "find_outside",
            (
                tensor("values", "items"),
                NumberArgument("limit", "int64"),
                DimensionArgument("items"),
                threads,
            ),
            returns="int64",
        ),
    )
    index_type = {torch.int32: "int32_t", torch.int64: "int64_t"}[dtype]
    return CppSource(
        f"graph_index_{index_type.removesuffix('_t')}",
        _TEXT.replace("INDEX_TYPE", index_type),
        functions,
    )


def sort_edges(
    keys: torch.Tensor, rows: int, order: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each key's edges begin, and the edges (of `order`, else all) by key, stable."""
    pointers, edges = empty_columns(keys.dtype, (rows + 1, keys.numel()))
    _kernel(keys.dtype).sort_edges(keys, order, pointers, edges)
    return pointers, edges


def sort_rows(
    keys: torch.Tensor,
    other_ends: torch.Tensor,
    relation: torch.Tensor,
    rows: int,
    order: torch.Tensor | None,
) -> Rows:
    """Edges by key, each with its other end and its relation; within a row as in `order`."""
    edges = keys.numel()
    found = Rows(*empty_columns(keys.dtype, (rows + 1, edges, edges, edges)))
    _kernel(keys.dtype).sort_rows(keys, other_ends, relation, order, *found)
    return found


def find_pairs(
    nodes: torch.Tensor,
    relation: torch.Tensor,
    sorted_edges: torch.Tensor,
    relation_pointers: torch.Tensor,
) -> Pairs:
    """The distinct pairs of edges that are sorted by relation, then by node."""
    kernel, edges = _kernel(nodes.dtype), nodes.numel()
    starts = torch.empty(torch.get_num_threads() + 1, dtype=torch.int64)
    kernel.count_pairs(nodes, relation, sorted_edges, starts)
    pairs = int(starts[-1])
    found = Pairs(*empty_columns(nodes.dtype, (relation_pointers.numel(), pairs, edges, pairs + 1)))
    kernel.fill_pairs(nodes, relation, sorted_edges, starts, relation_pointers, *found)
    return found


def find_outside(values: torch.Tensor, limit: int) -> int | None:
    """The first position whose value is not in `range(limit)`."""
    position: int = _kernel(values.dtype).find_outside(values, limit)
    return None if position < 0 else position


def empty_columns(dtype: torch.dtype, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Uninitialised vectors of one index, side by side on huge pages where they are large.

    A page of 4 KiB costs some microseconds the first time it is written, which is more than sorting
    the thousand numbers that it holds.
    """
    steps = [-(-size * dtype.itemsize // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for size in sizes]
    total_bytes = sum(steps)
    if total_bytes < HUGE_PAGES_FROM_BYTES:
        return [torch.empty(size, dtype=dtype) for size in sizes]
    columns, offset_bytes = [], 0
    # A closed pool keeps nothing: the memory goes back to the system with the last of the vectors.
    with (
        BufferPool(2 * total_bytes, why="graph indexes") as pool,
        pool.take(total_bytes) as buffer,
    ):
        for size, step in zip(sizes, steps, strict=True):
            columns.append(buffer.tensor(dtype, (size,), offset_bytes=offset_bytes))
            offset_bytes += step
    return columns


@functools.cache
def _kernel(dtype: torch.dtype) -> Kernel:
    return load_kernel(emit_index_kernels(dtype))
