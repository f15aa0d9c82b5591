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

from shorthaul.distributed.topology.held_rows import HeldRows
from shorthaul.graphs import TargetIndex


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

    index: TargetIndex  # of own nodes alone: pointers from 0, sources by their global ids
    targets: torch.Tensor  # (E,) rows


def read_own_edges(held: HeldRows, own: OwnRows, dtype: torch.dtype) -> OwnEdges:
    """The part of the graph's index that belongs to own nodes; nothing else of it is read."""
    empty = torch.empty(0, dtype=dtype, device="cpu")
    pointers, columns = [empty.new_zeros(1)], ([empty], [empty], [empty])
    edges = 0
    for piece in held.pieces:
        if not any(piece.nodes.start in rows for rows in own.ranges):
            continue
        begin, end = int(piece.pointers[0]), int(piece.pointers[-1])
        pointers.append(piece.pointers[1:] - begin + edges)
        edges += end - begin
        for column, of in zip(columns, (piece.sources, piece.relations, piece.edges), strict=True):
            column.append(of[begin:end])
    joined = torch.cat(pointers)
    index = TargetIndex(joined, *map(torch.cat, columns))
    return OwnEdges(index, torch.repeat_interleave(joined.diff().long()))
