"""The generated kernel behind `HGTSampler`: budgets in its own memory, rows given by the caller.

::

    start(sampler, seeds)               -> how many distinct seeds
    give(sampler, rows of the last)     -> their neighbors' budgets
    draw(sampler, wanted of each type)  -> how many nodes there are now
    copy_nodes(sampler)                 -> all of them
    count_edges, write_edges(sampler, rows of all) -> the edges among them
"""

from __future__ import annotations

import functools

import torch

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

_TEXT = r"""
// Sampling by budgets over ids of INDEX_TYPE.
#include "shorthaul/graphs/sampling/budgets/budgets.h"

using Id = INDEX_TYPE;
using Budgets = shorthaul::Budgets<Id>;

constexpr int64_t out_of_memory = -2;

void* create(int64_t num_nodes) {
  try {
    return new Budgets(num_nodes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void destroy(void* sampler) { delete static_cast<Budgets*>(sampler); }

int64_t start(void* sampler, const Id* seeds, Id* seed_rows, int64_t seed_count) {
  auto& made = *static_cast<Budgets*>(sampler);
  try {
    made.start(seeds, seed_count, seed_rows);
  } catch (const std::bad_alloc&) {
    return out_of_memory;
  }
  return made.taken().size();
}

int64_t give(void* sampler, ROWS, int64_t most_neighbors, int64_t key, int64_t row_count) {
  try {
    static_cast<Budgets*>(sampler)->give(MAKE_ROWS, most_neighbors, static_cast<uint64_t>(key));
  } catch (const std::bad_alloc&) {
    return out_of_memory;
  }
  return 0;
}

int64_t draw(void* sampler, const Id* stops, const int64_t* wanted, int64_t key, int64_t types) {
  auto& made = *static_cast<Budgets*>(sampler);
  try {
    made.draw(stops, wanted, types, static_cast<uint64_t>(key));
  } catch (const std::bad_alloc&) {
    return out_of_memory;
  }
  return made.taken().size();
}

void copy_nodes(void* sampler, int64_t first, Id* nodes, int64_t node_count) {
  std::copy_n(static_cast<Budgets*>(sampler)->taken().data() + first, node_count, nodes);
}

int64_t count_edges(void* sampler, ROWS, int64_t most_neighbors, int64_t key, int64_t* offsets,
                    int64_t threads, int64_t row_count) {
  return static_cast<Budgets*>(sampler)->count_edges(MAKE_ROWS, most_neighbors,
                                                     static_cast<uint64_t>(key), offsets, threads);
}

void write_edges(void* sampler, ROWS, int64_t most_neighbors, int64_t key, const int64_t* offsets,
                 Id* out_sources, Id* out_positions, int64_t threads, int64_t row_count) {
  static_cast<Budgets*>(sampler)->write_edges(MAKE_ROWS, most_neighbors, static_cast<uint64_t>(key),
                                              offsets, out_sources, out_positions, threads);
}
"""
_ROWS = """const int64_t* begins, const int64_t* ends, const int64_t* positions,
          const Id* sources, const Id* relations"""
_MAKE_ROWS = "shorthaul::GivenRows<Id>{begins, ends, positions, sources, relations, row_count}"


def emit_budgets(dtype: torch.dtype) -> CppSource:
    """The kernel for ids of `dtype`."""
    index_type = {torch.int32: "int32_t", torch.int64: "int64_t"}[dtype]
    sampler = NumberArgument("sampler", "address")
    number = functools.partial(NumberArgument, type="int64")
    written = functools.partial(TensorArgument, dtype=dtype, is_written=True)
    functions = (
        Function("create", (number("num_nodes"),), returns="address"),
        Function("destroy", (sampler,)),
        Function(
            "start",
            (
                sampler,
                TensorArgument("seeds", dtype, ("seed_count",)),
                written("seed_rows", shape=("seed_count",)),
                DimensionArgument("seed_count"),
            ),
            returns="int64",
        ),
        Function(
            "draw",
            (
                sampler,
                TensorArgument("stops", dtype, ("types",)),
                TensorArgument("wanted", torch.int64, ("types",)),
                number("key"),
                DimensionArgument("types"),
            ),
            returns="int64",
        ),
        Function(
            "copy_nodes",
            (
                sampler,
                number("first"),
                written("nodes", shape=("node_count",)),
                DimensionArgument("node_count"),
            ),
        ),
        *_emit_on_rows(dtype),
    )
    text = _TEXT.replace("INDEX_TYPE", index_type).replace("MAKE_ROWS", _MAKE_ROWS)
    return CppSource(f"sample_by_budgets_{index_type[:-2]}", text.replace("ROWS", _ROWS), functions)


def _emit_on_rows(dtype: torch.dtype) -> tuple[Function, ...]:
    """What goes through rows of the graph."""
    number = functools.partial(NumberArgument, type="int64")
    rows: tuple[TensorArgument | NumberArgument, ...] = (
        NumberArgument("sampler", "address"),
        *(
            TensorArgument(name, torch.int64, ("row_count",))
            for name in ("begins", "ends", "positions")
        ),
        *(TensorArgument(name, dtype, (None,)) for name in ("sources", "relations")),
        *map(number, ("most_neighbors", "key")),
    )
    offsets = functools.partial(TensorArgument, "offsets", torch.int64, (None,))
    made = (
        TensorArgument(name, dtype, (None,), is_written=True)
        for name in ("out_sources", "out_positions")
    )
    counts = number("threads"), DimensionArgument("row_count")
    return (
        Function("give", (*rows, counts[1]), returns="int64"),
        Function("count_edges", (*rows, offsets(is_written=True), *counts), returns="int64"),
        Function("write_edges", (*rows, offsets(), *made, *counts)),
    )


@functools.cache
def _kernel(dtype: torch.dtype) -> Kernel:
    return load_kernel(emit_budgets(dtype))


class BudgetMemory:
    """One sampler of the kernel: used by one thread at a time, freed when it is forgotten."""

    def __init__(self, dtype: torch.dtype, num_nodes: int) -> None:
        self.kernel = _kernel(dtype)
        self.address: int | None = self.kernel.create(num_nodes)
        if not self.address:
            raise MemoryError("no memory for a sampler")
        # Not at exit: the process's memory goes as a whole, and threads may still be sampling.
        when_gone(self, self.kernel.destroy.compiled, self.address)
