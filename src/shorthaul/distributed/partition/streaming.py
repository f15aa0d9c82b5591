"""A partitioner for graphs that METIS cannot hold: nodes are placed as their edges stream past.

Fennel (Tsourakakis et al., WSDM 2014): a node goes where most of its neighbors are, less a price that
grows with what the part has already; no part takes more than its share. Memory is one number for
each node. A second pass sees where all neighbors went, and cuts fewer edges.

>>> from shorthaul.graphs import RelationalGraph
>>> pairs = RelationalGraph.from_edges([1, 0, 3, 2], [0, 1, 2, 3])
>>> place_by_stream(TargetRows(pairs), 2, torch.ones(4, dtype=torch.int64), passes=2).tolist()
[1, 1, 0, 0]
"""

from __future__ import annotations

import functools
import math

import torch

from shorthaul.graphs.inclusion.target_rows import Piece, TargetRows
from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    Kernel,
    NumberArgument,
    TensorArgument,
    can_use_kernels,
    load_kernel,
)

UNIT = 2**20  # of a score: whole numbers, so that every machine places alike
ROOM = 1.05  # a part's share of all weight, at most this much beyond the even one

_TEXT = """\
// Nodes placed one after the other: to the part of most neighbors, less the price of what it has.
#include <cmath>
#include <cstdint>

void place_nodes(const int64_t* pointers, const INDEX_TYPE* sources, const int64_t* weights, int32_t* places,
                 int64_t* loads, int64_t* counts, int64_t* prices, int64_t first, double factor, int64_t room,
                 int64_t rows_and_one, int64_t edges, int64_t nodes, int64_t parts) {
  for (int64_t part = 0; part < parts; ++part)
    prices[part] = static_cast<int64_t>(factor * std::sqrt(static_cast<double>(loads[part])));
  const auto change = [&](int64_t part, int64_t weight) {
    loads[part] += weight;
    prices[part] = static_cast<int64_t>(factor * std::sqrt(static_cast<double>(loads[part])));
  };
  for (int64_t row = 0; row + 1 < rows_and_one; ++row) {
    const int64_t node = first + row, weight = weights[node];
    if (places[node] >= 0) change(places[node], -weight);
    for (int64_t part = 0; part < parts; ++part) counts[part] = 0;
    for (int64_t edge = pointers[row]; edge < pointers[row + 1]; ++edge) {
      const int32_t place = places[sources[edge]];
      if (place >= 0 && sources[edge] != node) ++counts[place];
    }
    int64_t best = -1, best_score = 0, emptiest = 0;
    for (int64_t part = 0; part < parts; ++part) {
      if (loads[part] < loads[emptiest]) emptiest = part;
      if (loads[part] + weight > room) continue;
      const int64_t score = counts[part] * (int64_t{1} << 20) - prices[part];
      if (best < 0 || score > best_score) best = part, best_score = score;
    }
    if (best < 0) best = emptiest;
    places[node] = static_cast<int32_t>(best);
    change(best, weight);
  }
}
"""


def place_by_stream(
    rows: TargetRows, parts: int, weights: torch.Tensor, *, passes: int = 1
) -> torch.Tensor:
    """(nodes,) int32: the part of each node, after `passes` passes over the edges."""
    nodes, edges = rows.graph.num_nodes, rows.graph.num_edges
    places = torch.full((nodes,), -1, dtype=torch.int32, device="cpu")
    total = int(weights.sum())
    if parts == 1 or nodes == 0:
        return places.zero_()
    # Fennel's price of a part with load l is a * g * l^(g - 1), with g = 1.5 and the a of its paper.
    factor = 1.5 * edges * math.sqrt(parts) / max(1, total) ** 1.5 * UNIT
    room = max(math.ceil(ROOM * total / parts), int(weights.max()))
    loads = torch.zeros(parts, dtype=torch.int64, device="cpu")
    place = _place_by_kernel if can_use_kernels("streaming partitioner") else place_plainly
    for _ in range(passes):
        for piece in rows.pieces():
            place(piece, weights, places, loads, factor, room)
    return places


def place_plainly(
    piece: Piece,
    weights: torch.Tensor,
    places: torch.Tensor,
    loads: torch.Tensor,
    factor: float,
    room: int,
) -> None:
    """The same in plain Python, number for number: the kernel's oracle, and the way without a compiler."""
    parts = range(len(loads))
    ends = piece.pointers.tolist()
    for row in range(len(ends) - 1):
        node = piece.first + row
        weight, before = int(weights[node]), int(places[node])
        if before >= 0:
            loads[before] -= weight
        counts = [0] * len(loads)
        for source in piece.sources[ends[row] : ends[row + 1]].tolist():
            if source != node and int(places[source]) >= 0:
                counts[int(places[source])] += 1
        held = loads.tolist()
        scores = {
            part: counts[part] * UNIT - int(factor * math.sqrt(held[part]))
            for part in parts
            if held[part] + weight <= room
        }
        best = max(scores, key=scores.__getitem__) if scores else held.index(min(held))
        places[node] = best
        loads[best] += weight


def _place_by_kernel(
    piece: Piece,
    weights: torch.Tensor,
    places: torch.Tensor,
    loads: torch.Tensor,
    factor: float,
    room: int,
) -> None:
    counts, prices = torch.empty(2, len(loads), dtype=torch.int64, device="cpu")
    _kernel(piece.sources.dtype).place_nodes(
        piece.pointers,
        piece.sources,
        weights,
        places,
        loads,
        counts,
        prices,
        piece.first,
        factor,
        room,
    )


def emit_placement(dtype: torch.dtype) -> CppSource:
    """The kernel for sources of `dtype`, int32 or int64."""
    index_type = {torch.int32: "int32_t", torch.int64: "int64_t"}[dtype]

    def tensor(
        name: str, of: torch.dtype, size: str, *, is_written: bool = False
    ) -> TensorArgument:
        return TensorArgument(name, of, (size,), is_written=is_written)

    function = Function(
        "place_nodes",
        (
            tensor("pointers", torch.int64, "rows_and_one"),
            tensor("sources", dtype, "edges"),
            tensor("weights", torch.int64, "nodes"),
            tensor("places", torch.int32, "nodes", is_written=True),
            *(
                tensor(name, torch.int64, "parts", is_written=True)
                for name in ("loads", "counts", "prices")
            ),
            NumberArgument("first", "int64"),
            NumberArgument("factor", "float64"),
            NumberArgument("room", "int64"),
            *map(DimensionArgument, ("rows_and_one", "edges", "nodes", "parts")),
        ),
    )
    name = f"place_nodes_{index_type.removesuffix('_t')}"
    return CppSource(name, _TEXT.replace("INDEX_TYPE", index_type), (function,))


@functools.cache
def _kernel(dtype: torch.dtype) -> Kernel:
    return load_kernel(emit_placement(dtype))
