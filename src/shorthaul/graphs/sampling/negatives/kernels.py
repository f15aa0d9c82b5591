"""The generated kernels behind `NegativeSampler`.

::

    sort_sources(rows by relation)      -> the sources of each (target, relation), ascending
    draw(positives, pools, true edges)  -> pairs that no edge joins, on all threads

and, where the true edges lie on disk, the steps of `draw`::

    propose(positives, pools, attempt)  -> one pair for each negative that is asked for
    check(pairs, rows that were read)   -> which of them are taken already
"""

from __future__ import annotations

import functools

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

_TEXT = r"""
// Negative edges over ids of INDEX_TYPE.
#include "shorthaul/graphs/sampling/draw.h"
#include "shorthaul/graphs/sampling/negatives/negatives.h"

using Id = INDEX_TYPE;

void sort_sources(const Id* pointers, const Id* relations, Id* sources, int64_t ends, int64_t threads) {
  shorthaul::parallel_for(ends - 1, 64, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t first = pointers[row]; first < pointers[row + 1];) {
        const int64_t stop = shorthaul::run_end(relations, first, pointers[row + 1]);
        std::sort(sources + first, sources + stop);
        first = stop;
      }
    }
  });
}

int64_t draw(POSITIVES, const Id* edge_pointers, const Id* edge_relations, const Id* edge_sources,
             const int64_t* asked, Id* out_sources, Id* out_targets, int64_t first_attempt,
             int64_t attempts, int64_t threads, int64_t asked_count) {
  const shorthaul::TrueEdges<Id> edges{edge_pointers, edge_relations, edge_sources};
  return shorthaul::draw_negatives(MAKE_POSITIVES, edges, asked, asked_count, first_attempt, attempts,
                                   out_sources, out_targets, threads);
}

// Where a pool is empty the pair is (-1, -1).
void propose(POSITIVES, const int64_t* asked, Id* out_sources, Id* out_targets, int64_t attempt,
             int64_t threads, int64_t asked_count) {
  const auto positives = MAKE_POSITIVES;
  shorthaul::parallel_for(asked_count, 64, threads, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      if (!positives.propose(asked[at], attempt, out_sources[at], out_targets[at])) {
        out_sources[at] = out_targets[at] = -1;
      }
    }
  });
}

// is_free[i] = 1 where the pair may be a negative; the rows of the targets lie one after the other.
void check(POSITIVES, const int64_t* asked, const Id* pair_sources, const Id* pair_targets,
           const int64_t* row_starts, const Id* row_relations, const Id* row_sources, uint8_t* is_free,
           int64_t threads, int64_t asked_count) {
  const auto positives = MAKE_POSITIVES;
  shorthaul::parallel_for(asked_count, 16, threads, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t p = asked[at] / positives.count;
      bool free = pair_targets[at] >= 0 && positives.allows(p, pair_sources[at], pair_targets[at]);
      for (int64_t edge = row_starts[at]; free && edge < row_starts[at + 1]; ++edge) {
        free = row_relations[edge] != relations[p] || row_sources[edge] != pair_sources[at];
      }
      is_free[at] = free ? 1 : 0;
    }
  });
}
"""

_POSITIVES = """const Id* sources, const Id* targets, const Id* relations, const int64_t* moments,
    const Id* source_nodes, const int64_t* source_times, const double* source_weights,
    const double* source_cumulative, const int64_t* source_begins, const int64_t* source_ends,
    const Id* target_nodes, const int64_t* target_times, const double* target_weights,
    const double* target_cumulative, const int64_t* target_begins, const int64_t* target_ends,
    int64_t replaced, int64_t allows_loops, int64_t allows_equal, int64_t avoids, int64_t count,
    int64_t key"""
_MAKE_POSITIVES = """shorthaul::Positives<Id>{
      sources, targets, relations, moments,
      {source_nodes, source_times, source_weights, source_cumulative, source_begins, source_ends},
      {target_nodes, target_times, target_weights, target_cumulative, target_begins, target_ends},
      replaced, allows_loops, allows_equal, avoids, count, static_cast<uint64_t>(key)}"""


def emit_negatives(dtype: torch.dtype) -> CppSource:
    """The kernels for ids of `dtype`."""
    index_type = {torch.int32: "int32_t", torch.int64: "int64_t"}[dtype]
    number = functools.partial(NumberArgument, type="int64")
    written = functools.partial(TensorArgument, dtype=dtype, is_written=True)
    asked = TensorArgument("asked", torch.int64, ("asked_count",))
    counts = number("threads"), DimensionArgument("asked_count")
    pair = (
        written("out_sources", shape=("asked_count",)),
        written("out_targets", shape=("asked_count",)),
    )
    positives = _emit_positives(dtype)
    column = functools.partial(TensorArgument, dtype=dtype, shape=(None,))
    functions = (
        Function(
            "sort_sources",
            (
                TensorArgument("pointers", dtype, ("ends",)),
                column("relations"),
                written("sources", shape=(None,)),
                DimensionArgument("ends"),
                ThreadsArgument("threads"),
            ),
        ),
        Function(
            "draw",
            (
                *positives,
                *(
                    column(f"edge_{name}", is_optional=True)
                    for name in ("pointers", "relations", "sources")
                ),
                asked,
                *pair,
                *map(number, ("first_attempt", "attempts")),
                *counts,
            ),
            returns="int64",
        ),
        Function("propose", (*positives, asked, *pair, number("attempt"), *counts)),
        Function(
            "check",
            (
                *positives,
                asked,
                *(column(f"pair_{name}") for name in ("sources", "targets")),
                TensorArgument("row_starts", torch.int64, (None,)),
                *(column(f"row_{name}") for name in ("relations", "sources")),
                TensorArgument("is_free", torch.uint8, ("asked_count",), is_written=True),
                *counts,
            ),
        ),
    )
    text = _TEXT.replace("INDEX_TYPE", index_type).replace("MAKE_POSITIVES", _MAKE_POSITIVES)
    text = text.replace("POSITIVES", _POSITIVES)
    return CppSource(f"draw_negatives_{index_type[:-2]}", text, functions)


def _emit_positives(dtype: torch.dtype) -> tuple[TensorArgument | NumberArgument, ...]:
    """The true edges, the pools of both ends and the rule, as every function takes them."""

    def tensor(name: str, of: torch.dtype, *, is_optional: bool = True) -> TensorArgument:
        return TensorArgument(name, of, (None,), is_optional=is_optional)

    def pool(end: str) -> tuple[TensorArgument, ...]:
        return (
            tensor(f"{end}_nodes", dtype),
            tensor(f"{end}_times", torch.int64),
            tensor(f"{end}_weights", torch.float64),
            tensor(f"{end}_cumulative", torch.float64),
            tensor(f"{end}_begins", torch.int64, is_optional=False),
            tensor(f"{end}_ends", torch.int64, is_optional=False),
        )

    given = (tensor(name, dtype, is_optional=False) for name in ("sources", "targets", "relations"))
    numbers = ("replaced", "allows_loops", "allows_equal", "avoids", "count", "key")
    return (
        *given,
        tensor("moments", torch.int64),
        *pool("source"),
        *pool("target"),
        *(NumberArgument(name, "int64") for name in numbers),
    )


@functools.cache
def negative_kernels(dtype: torch.dtype) -> Kernel:
    """The kernels, compiled at their first use."""
    return load_kernel(emit_negatives(dtype))
