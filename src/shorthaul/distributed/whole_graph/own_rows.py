"""The nodes that a rank owns, as the rows of a tensor, and the edges that they hear through.

>>> own = OwnRows((range(4, 6), range(10, 13)))
>>> own.count, own.places(torch.tensor([11, 4, 12])).tolist()
(5, [3, 0, 4])
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import torch

from shorthaul.graphs import RelationalGraph


@dataclass(frozen=True)
class OwnRows:
    """Ranges of global ids, one after the other: a row for each."""

    ranges: tuple[range, ...]  # ascending

    @property
    def count(self) -> int:
        """Rows."""
        return sum(map(len, self.ranges))

    @functools.cached_property
    def starts(self) -> tuple[int, ...]:
        """The first row of each range, and at last the number of rows."""
        return tuple(itertools.accumulate(map(len, self.ranges), initial=0))

    def ids(self) -> torch.Tensor:
        """The global id of each row."""
        return torch.cat(
            [
                torch.arange(each.start, each.stop, dtype=torch.int64, device="cpu")
                for each in self.ranges
            ]
        )

    def places(self, ids: torch.Tensor) -> torch.Tensor:
        """The row of each global id, all of which are here."""
        wide = ids.long()
        places = torch.empty_like(wide)
        for each, first in zip(self.ranges, self.starts, strict=False):
            is_here = (wide >= each.start) & (wide < each.stop)
            places[is_here] = wide[is_here] - each.start + first
        return places


@dataclass(frozen=True, eq=False)
class OwnEdges:
    """The edges that own nodes hear through, by target, and by relation within each."""

    pointers: torch.Tensor  # (targets + 1,)
    sources: torch.Tensor  # (E,) global ids
    relations: torch.Tensor  # (E,)
    positions: torch.Tensor  # (E,) places in the graph's `by_target()` index
    targets: torch.Tensor  # (E,) rows


def read_own_edges(graph: RelationalGraph, own: OwnRows) -> OwnEdges:
    """The part of the graph's index that belongs to own nodes; nothing else of it is read."""
    index = graph.by_target()
    pointers, spans = [index.pointers[:1] * 0], []
    edges = 0
    for rows in own.ranges:
        there = index.pointers[rows.start : rows.stop + 1]
        begin, end = int(there[0]), int(there[-1])
        pointers.append(there[1:] - begin + edges)
        spans.append(range(begin, end))
        edges += end - begin
    columns = (
        torch.cat([column[each.start : each.stop] for each in spans])
        for column in (index.sources, index.relations)
    )
    sources, relations = columns
    dtype = index.sources.dtype
    positions = torch.cat(
        [torch.arange(each.start, each.stop, dtype=dtype, device="cpu") for each in spans]
    )
    joined = torch.cat(pointers)
    targets = torch.repeat_interleave(joined.diff().long())
    return OwnEdges(joined, sources, relations, positions, targets)
