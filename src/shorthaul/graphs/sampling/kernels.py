"""The generated kernel behind `NeighborSampler`: one call samples all hops without the GIL.

::

    create(num_nodes, is_hashed)              -> a sampler: its table and the memory of the last sample
    sample(sampler, graph, seeds, fan-outs)   -> counts: seeds, then nodes and edges after each hop
    copy_nodes, copy_trees, copy_hop(sampler) -> what was sampled, into tensors of just that size
    destroy(sampler)

and, where the graph is read from disk in between, the steps of `sample`::

    start(sampler, seeds)                     -> how many distinct seeds
    start_hop(sampler, hop)                   -> the first target and how many there are
    draw_hop(sampler, hop, their rows)        -> how many edges; `copy_positions` says which
    relabel_hop(sampler, hop, their sources)  -> how many nodes there are now

The templates lie beside this module; the text here names their types.
"""

from __future__ import annotations

import functools

import torch

from shorthaul.errors import SamplingError
from shorthaul.interrupts import when_gone
from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    Kernel,
    NumberArgument,
    TensorArgument,
    load_kernel,
)

# From this many nodes on ids are looked up in a hash table. A table over all nodes is one look per
# id as long as it stays in the cache; in larger graphs nearly every look is a miss, and the first
# ones each fault in a page. They cross between 2**22 and 2**24 nodes (docs/sampling.md).
HASHED_FROM_NODES = 2**23

_TEXT = r"""
// Neighbor sampling over ids of INDEX_TYPE; ids are looked up in a TABLE.
#include <algorithm>

#include "shorthaul/graphs/sampling/sampler.h"

namespace {

using Id = INDEX_TYPE;
using Sampler = shorthaul::Sampler<Id, shorthaul::TABLE>;

constexpr int64_t out_of_memory = -2;

}  // namespace

void* create(int64_t num_nodes) {
  try {
    return new Sampler(num_nodes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void destroy(void* sampler) { delete static_cast<Sampler*>(sampler); }

int64_t sample(void* sampler, const Id* pointers, const Id* sources, const Id* relations,
               const Id* order, const int64_t* times, const double* weights, const double* cumulative,
               const Id* seeds, const int64_t* seed_times, const Id* excluded, Id* seed_rows,
               const int64_t* fan_outs, const int64_t* fan_widths, int64_t* counts, int64_t strategy,
               int64_t replace, int64_t allows_equal, int64_t resample, int64_t disjoint, int64_t key,
               int64_t threads, int64_t pointer_count, int64_t excluded_count, int64_t seed_count,
               int64_t hops, int64_t fan_relations) {
  auto& made = *static_cast<Sampler*>(sampler);
  const shorthaul::Neighbors<Id> graph{
      pointers, sources, relations, {order, times, weights, cumulative, nullptr}, pointer_count - 1};
  const shorthaul::Rule<Id> rule{static_cast<shorthaul::Strategy>(strategy), replace != 0,
                                 allows_equal != 0, seed_times, excluded, excluded_count};
  int64_t status;
  try {
    status = made.sample(graph, seeds, seed_count, seed_rows, fan_outs, fan_widths, hops,
                         fan_relations, rule, resample != 0, disjoint != 0,
                         static_cast<uint64_t>(key), threads);
  } catch (const std::bad_alloc&) {
    return out_of_memory;
  }
  if (status != 0) return status;
  counts[0] = made.seeds();
  for (int64_t hop = 0; hop < hops; ++hop) {
    counts[1 + 2 * hop] = hop + 1 < hops ? made.nodes_after(hop + 1) : made.count_nodes();
    counts[2 + 2 * hop] = made.hop(hop).edges;
  }
  return 0;
}

int64_t start(void* sampler, const Id* seeds, Id* seed_rows, int64_t hops, int64_t disjoint,
              int64_t threads, int64_t seed_count) {
  auto& made = *static_cast<Sampler*>(sampler);
  try {
    made.start(seeds, seed_count, seed_rows, hops, disjoint != 0, threads);
  } catch (const std::bad_alloc&) {
    return out_of_memory;
  }
  return made.seeds();
}

void start_hop(void* sampler, int64_t hop, int64_t resample, int64_t* targets) {
  auto& made = *static_cast<Sampler*>(sampler);
  made.start_hop(hop, resample != 0);
  targets[0] = made.hop(hop).first_target;
  targets[1] = made.hop(hop).targets;
}

// The number of edges, or -1 when they are more than an id can count.
int64_t draw_hop(void* sampler, int64_t hop, const Id* ends, const Id* relations,
                 const int64_t* row_starts, const Id* order, const int64_t* times,
                 const double* weights, const double* cumulative, const Id* row_sources, const int64_t* seed_times,
                 const Id* excluded, const int64_t* fan_outs, int64_t fan_width, int64_t strategy,
                 int64_t replace, int64_t allows_equal, int64_t key, int64_t threads,
                 int64_t excluded_count) {
  auto& made = *static_cast<Sampler*>(sampler);
  const shorthaul::ReadRows<Id> rows{
      ends, relations, row_starts, {order, times, weights, cumulative, row_sources}};
  const shorthaul::Rule<Id> rule{static_cast<shorthaul::Strategy>(strategy), replace != 0,
                                 allows_equal != 0, seed_times, excluded, excluded_count};
  try {
    if (!made.draw_hop(rows, hop, fan_outs, fan_width, rule, static_cast<uint64_t>(key), threads)) {
      return -1;
    }
  } catch (const std::bad_alloc&) {
    return out_of_memory;
  }
  return made.hop(hop).edges;
}

void copy_positions(void* sampler, int64_t hop, Id* positions, int64_t edge_count) {
  const auto& made = static_cast<Sampler*>(sampler)->hop(hop);
  std::copy_n(made.positions.data(), edge_count, positions);
}

int64_t relabel_hop(void* sampler, int64_t hop, const Id* sources, int64_t edge_count) {
  auto& made = *static_cast<Sampler*>(sampler);
  try {
    std::copy_n(sources, edge_count, made.hop(hop).sources.data());
    made.relabel_hop(hop);
  } catch (const std::bad_alloc&) {
    return out_of_memory;
  }
  return made.count_nodes();
}

void copy_nodes(void* sampler, int64_t first, Id* nodes, int64_t node_count) {
  auto& made = *static_cast<Sampler*>(sampler);
  std::copy_n(made.nodes() + first, node_count, nodes);
}

// Of a disjoint sample: the seed, by its position, that each node was met from.
void copy_trees(void* sampler, Id* trees, int64_t node_count) {
  std::copy_n(static_cast<Sampler*>(sampler)->trees(), node_count, trees);
}

// The hop's edges, after `base` edges of earlier hops: sources and positions begin there, and so do
// the numbers in `offsets`, which gets one for each target (where its edges end).
void copy_hop(void* sampler, int64_t hop, int64_t base, Id* offsets, Id* sources, Id* positions,
              int64_t target_count, int64_t edge_count) {
  const auto& made = static_cast<Sampler*>(sampler)->hop(hop);
  for (int64_t n = 0; n < target_count; ++n) {
    offsets[n] = static_cast<Id>(base + made.offsets.data()[n + 1]);
  }
  std::copy_n(made.sources.data(), edge_count, sources);
  std::copy_n(made.positions.data(), edge_count, positions);
}
"""


def emit_sampler(dtype: torch.dtype, *, is_hashed: bool) -> CppSource:
    """The kernel for ids of `dtype`, with a hash table or with a table over all nodes."""
    index_type = {torch.int32: "int32_t", torch.int64: "int64_t"}[dtype]
    sampler = NumberArgument("sampler", "address")
    number = functools.partial(NumberArgument, type="int64")
    written = functools.partial(TensorArgument, dtype=dtype, is_written=True)
    functions = (
        Function("create", (number("num_nodes"),), returns="address"),
        Function("destroy", (sampler,)),
        Function(
            "sample",
            (
                sampler,
                TensorArgument("pointers", dtype, ("pointer_count",)),
                TensorArgument("sources", dtype, (None,)),
                TensorArgument("relations", dtype, (None,), is_optional=True),
                *_emit_columns(dtype)[:4],
                TensorArgument("seeds", dtype, ("seed_count",)),
                TensorArgument("seed_times", torch.int64, (None,), is_optional=True),
                TensorArgument("excluded", dtype, ("excluded_count",)),
                written("seed_rows", shape=("seed_count",)),
                TensorArgument("fan_outs", torch.int64, ("hops", "fan_relations")),
                TensorArgument("fan_widths", torch.int64, ("hops",)),
                TensorArgument("counts", torch.int64, (None,), is_written=True),
                *map(number, ("strategy", "replace", "allows_equal")),
                *map(number, ("resample", "disjoint", "key", "threads")),
                *map(DimensionArgument, ("pointer_count", "excluded_count", "seed_count")),
                *map(DimensionArgument, ("hops", "fan_relations")),
            ),
            returns="int64",
        ),
        *_emit_steps(dtype),
        *_emit_copies(dtype),
        Function(
            "copy_hop",
            (
                sampler,
                number("hop"),
                number("base"),
                written("offsets", shape=("target_count",)),
                written("sources", shape=("edge_count",)),
                written("positions", shape=("edge_count",)),
                DimensionArgument("target_count"),
                DimensionArgument("edge_count"),
            ),
        ),
    )
    table = "HashTable" if is_hashed else "DirectTable"
    text = _TEXT.replace("INDEX_TYPE", index_type).replace("TABLE", table)
    return CppSource(f"sample_neighbors_{index_type[:-2]}_{table[:-5].lower()}", text, functions)


def _emit_copies(dtype: torch.dtype) -> tuple[Function, ...]:
    """Nodes and trees, out of the sampler's memory."""
    sampler, count = NumberArgument("sampler", "address"), DimensionArgument("node_count")
    nodes, trees = (
        TensorArgument(name, dtype, ("node_count",), is_written=True) for name in ("nodes", "trees")
    )
    first = NumberArgument("first", "int64")
    return (
        Function("copy_nodes", (sampler, first, nodes, count)),
        Function("copy_trees", (sampler, trees, count)),
    )


def _emit_columns(dtype: torch.dtype) -> tuple[TensorArgument, ...]:
    """What is known of candidates, each where somebody asks for it."""
    return tuple(
        TensorArgument(name, of, (None,), is_optional=True)
        for name, of in (
            ("order", dtype),
            ("times", torch.int64),
            ("weights", torch.float64),
            ("cumulative", torch.float64),
            ("row_sources", dtype),
        )
    )


def _emit_steps(dtype: torch.dtype) -> tuple[Function, ...]:
    """The steps of `sample`, one by one."""
    sampler = NumberArgument("sampler", "address")
    number = functools.partial(NumberArgument, type="int64")
    edge_count = DimensionArgument("edge_count")
    return (
        Function(
            "start",
            (
                sampler,
                TensorArgument("seeds", dtype, ("seed_count",)),
                TensorArgument("seed_rows", dtype, ("seed_count",), is_written=True),
                *map(number, ("hops", "disjoint", "threads")),
                DimensionArgument("seed_count"),
            ),
            returns="int64",
        ),
        Function(
            "start_hop",
            (
                sampler,
                *map(number, ("hop", "resample")),
                TensorArgument("targets", torch.int64, (2,), is_written=True),
            ),
        ),
        Function(
            "draw_hop",
            (
                sampler,
                number("hop"),
                TensorArgument("ends", dtype, (None,)),
                TensorArgument("relations", dtype, (None,), is_optional=True),
                TensorArgument("row_starts", torch.int64, (None,), is_optional=True),
                *_emit_columns(dtype),
                TensorArgument("seed_times", torch.int64, (None,), is_optional=True),
                TensorArgument("excluded", dtype, ("excluded_count",)),
                TensorArgument("fan_outs", torch.int64, (None,)),
                *map(number, ("fan_width", "strategy", "replace", "allows_equal")),
                *map(number, ("key", "threads")),
                DimensionArgument("excluded_count"),
            ),
            returns="int64",
        ),
        Function(
            "copy_positions",
            (
                sampler,
                number("hop"),
                TensorArgument("positions", dtype, ("edge_count",), is_written=True),
                edge_count,
            ),
        ),
        Function(
            "relabel_hop",
            (sampler, number("hop"), TensorArgument("sources", dtype, ("edge_count",)), edge_count),
            returns="int64",
        ),
    )


def require_drawn(status: int, dtype: torch.dtype) -> int:
    """What a step of the kernel counted; its error where that is negative."""
    if status == -2:
        raise MemoryError(
            "there was no memory for a sample of neighbors: lower the fan-outs or the number of seeds"
        )
    if status < 0:
        raise SamplingError(
            f"the sample has more edges than {dtype} can count.\n"
            "  Lower the fan-outs or the number of seeds, or make the graph with int64 indexes."
        )
    return status


@functools.cache
def _kernel(dtype: torch.dtype, is_hashed: bool) -> Kernel:
    return load_kernel(emit_sampler(dtype, is_hashed=is_hashed))


class SamplingMemory:
    """One sampler of the kernel: used by one thread at a time, freed when it is forgotten."""

    def __init__(self, dtype: torch.dtype, num_nodes: int, *, is_hashed: bool) -> None:
        self.kernel = _kernel(dtype, is_hashed)
        self.address: int | None = self.kernel.create(num_nodes)
        if not self.address:
            raise MemoryError(f"no memory for a table of {num_nodes:,} nodes")
        # Not at exit: the process's memory goes as a whole, and threads may still be sampling.
        when_gone(self, self.kernel.destroy.compiled, self.address)
