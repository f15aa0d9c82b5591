"""What is known of candidates, row by row, in the order in which a sampler looks for them.

A row's neighbors by time let the sampler find those before a moment by bisection; their weights, added
up, let it find a neighbor by a share of the sum. Both are made once for a graph in memory, and for
the rows of a hop where it lies on disk.

>>> times = torch.tensor([5, 3, 4, 1])
>>> arranged = arrange_rows(torch.tensor([0, 3, 4]), torch.int32, times=times)
>>> arranged.order.tolist(), arranged.times.tolist()  # how far into its row each is
([1, 2, 0, 0], [3, 4, 5, 1])
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import torch

from shorthaul.graphs.sampling.candidates.weights import add_up
from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    Kernel,
    TensorArgument,
    ThreadsArgument,
    can_use_kernels,
    load_kernel,
)


class Arranged(NamedTuple):
    """One entry for each candidate of each row; `None` where nobody asks for it."""

    order: torch.Tensor | None = None  # by time: how far into its row the candidate lies
    times: torch.Tensor | None = None  # int64, ascending within a run
    weights: torch.Tensor | None = None  # float64
    cumulative: torch.Tensor | None = None  # float64: weights of the run up to here, of any scale


def arrange_rows(
    row_starts: torch.Tensor,
    dtype: torch.dtype,
    *,
    relations: torch.Tensor | None = None,
    times: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
) -> Arranged:
    """Rows `row_starts[r]` to `row_starts[r + 1]` by time, each run of `relations` by itself."""
    order = None if times is None else torch.empty(times.shape[0], dtype=dtype, device="cpu")
    sorted_times = None if times is None else torch.empty_like(times)
    sorted_weights = None if weights is None else torch.empty_like(weights)
    cumulative = None if weights is None else torch.empty_like(weights)
    arranged = Arranged(order, sorted_times, sorted_weights, cumulative)
    if can_use_kernels("neighbor sampling"):
        _kernel(dtype).arrange(row_starts, relations, times, weights, *arranged)
    else:
        arrange_plainly(row_starts, relations, times, weights, arranged)
    return arranged


def arrange_plainly(
    row_starts: torch.Tensor,
    relations: torch.Tensor | None,
    times: torch.Tensor | None,
    weights: torch.Tensor | None,
    arranged: Arranged,
) -> None:
    """The same in plain Python: where there is no compiler, and to compare with."""
    for begin, end in itertools.pairwise(row_starts.tolist()):
        ranks = list(range(end - begin))
        runs = [0] * len(ranks) if relations is None else relations[begin:end].tolist()
        if times is not None and arranged.order is not None and arranged.times is not None:
            moments = times[begin:end].tolist()
            ranks.sort(key=lambda at: (runs[at], moments[at]))
            arranged.order[begin:end] = torch.tensor(
                ranks, dtype=arranged.order.dtype, device="cpu"
            )
            arranged.times[begin:end] = times[begin:end][ranks]
        if weights is not None and arranged.weights is not None:
            assert arranged.cumulative is not None
            arranged.weights[begin:end] = weights[begin:end][ranks]
            own = zip(runs, arranged.weights[begin:end].tolist(), strict=True)
            sums = [
                each
                for _, run in itertools.groupby(own, key=lambda pair: pair[0])
                for each in add_up([weight for _, weight in run])
            ]
            arranged.cumulative[begin:end] = torch.tensor(sums, dtype=torch.float64, device="cpu")


_TEXT = r"""
// What is known of the candidates of rows with ids of INDEX_TYPE, by time.
#include "shorthaul/graphs/sampling/candidates/arrange.h"

using Id = INDEX_TYPE;

void arrange(const int64_t* row_starts, const Id* relations, const int64_t* times, const double* weights,
             Id* order, int64_t* sorted_times, double* sorted_weights, double* cumulative,
             int64_t ends, int64_t threads) {
  shorthaul::parallel_for(ends - 1, 64, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      shorthaul::arrange_row(relations, times, weights, row_starts[row], row_starts[row + 1], order,
                             sorted_times, sorted_weights, cumulative);
    }
  });
}
"""


def emit_arranging(dtype: torch.dtype) -> CppSource:
    """The kernel for ids of `dtype`."""
    index_type = {torch.int32: "int32_t", torch.int64: "int64_t"}[dtype]

    def optional(name: str, of: torch.dtype, *, is_written: bool = False) -> TensorArgument:
        return TensorArgument(name, of, (None,), is_optional=True, is_written=is_written)

    arrange = Function(
        "arrange",
        (
            TensorArgument("row_starts", torch.int64, ("ends",)),
            optional("relations", dtype),
            optional("times", torch.int64),
            optional("weights", torch.float64),
            optional("order", dtype, is_written=True),
            optional("sorted_times", torch.int64, is_written=True),
            optional("sorted_weights", torch.float64, is_written=True),
            optional("cumulative", torch.float64, is_written=True),
            DimensionArgument("ends"),
            ThreadsArgument("threads"),
        ),
    )
    text = _TEXT.replace("INDEX_TYPE", index_type)
    return CppSource(f"arrange_candidates_{index_type[:-2]}", text, (arrange,))


@functools.cache
def _kernel(dtype: torch.dtype) -> Kernel:
    return load_kernel(emit_arranging(dtype))
