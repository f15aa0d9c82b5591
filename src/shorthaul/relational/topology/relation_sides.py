"""The side on which each relation has fewer distinct nodes, and the edges and pairs of either side.

A relation such as *has gender* leads from thousands of nodes to two. To multiply its sources by its
weight takes thousands of rows; to sum them first and multiply the sums takes two. Its inverse is the
other way round. On FB15k-237 with inverses, 64,000 rows are left of 162,000.
"""

from __future__ import annotations

from typing import Protocol

import torch

from shorthaul.graphs import RelationalGraph
from shorthaul.relational.ir.spaces import SIDES, Space

SPACES = frozenset({*SIDES, *SIDES.values()})

# Ways along which rows already come in the order of what they lead to.
SORTED_WAYS = frozenset(
    {(edges, "target") for edges in SIDES} | {(pairs, "relation") for pairs in SIDES.values()}
)


class Ways(Protocol):
    """A `Topology`, as far as sides need it."""

    @property
    def graph(self) -> RelationalGraph:
        """With edges sorted by target."""

    def way(self, fine: Space, way: str) -> torch.Tensor:
        """The coarse row of every fine row."""


# The pairs of one side are some of these.
_ALL_PAIRS = {
    Space.SOURCE_SIDE_PAIR: (Space.SOURCE_PAIR, "source_pair"),
    Space.TARGET_SIDE_PAIR: (Space.TARGET_PAIR, "target_pair"),
}


def count_rows(topology: Ways, space: Space) -> int:
    """How many edges or pairs are on a side."""
    graph = topology.graph
    if space in SIDES:
        pointers = graph.by_relation().pointers
    else:
        pointers = graph.pairs("source" if space is Space.SOURCE_SIDE_PAIR else "target").pointers
    return int(_count(pointers)[_relations_of(topology, space)].sum())


def find_way(topology: Ways, fine: Space, way: str) -> torch.Tensor:
    """The coarse row of every row of a side: rows keep the order that they have among all."""
    if fine not in SIDES:
        all_pairs, _ = _ALL_PAIRS[fine]
        return topology.way(all_pairs, way)[_is_pair_of(topology, fine)]
    if way == "edge":
        is_edge = _relations_of(topology, fine)[topology.graph.relation]
        return is_edge.nonzero().flatten().to(topology.graph.index_dtype)
    edges = topology.way(fine, "edge")
    if way != "side_pair":
        return topology.way(Space.EDGE, way)[edges]
    pairs = SIDES[fine]
    numbers = _is_pair_of(topology, pairs).cumsum(0, dtype=topology.graph.index_dtype) - 1
    return numbers[topology.way(Space.EDGE, _ALL_PAIRS[pairs][1])[edges]]


def _relations_of(topology: Ways, space: Space) -> torch.Tensor:
    """Which relations are on the side: (R,) bool."""
    sources, targets = (_count(topology.graph.pairs(end).pointers) for end in ("source", "target"))
    is_source_side = space in (Space.SOURCE_SIDE_EDGE, Space.SOURCE_SIDE_PAIR)
    return sources <= targets if is_source_side else sources > targets


def _is_pair_of(topology: Ways, pairs: Space) -> torch.Tensor:
    """Which of all pairs of that end are on the side."""
    return _relations_of(topology, pairs)[topology.way(_ALL_PAIRS[pairs][0], "relation")]


def _count(pointers: torch.Tensor) -> torch.Tensor:
    return pointers[1:] - pointers[:-1]
