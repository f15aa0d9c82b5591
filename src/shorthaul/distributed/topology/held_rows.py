"""The rows of the topology that one rank reads: incoming edges of its own nodes, and of ranks beside it.

Edges are counted over what is held, piece after piece: these positions mean nothing on another rank, which is
told sources, edge ids and relations instead.

>>> piece = HeldPiece(range(4, 6), torch.tensor([7, 8, 10]), *torch.arange(60).view(3, 20))
>>> held = HeldRows([piece])
>>> rows = held.find(torch.tensor([5]), by_relation=False)
>>> rows.ends.tolist(), held.read(torch.tensor([1, 2]), [0, 2])[0].tolist()
([1, 3], [8, 9])
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shorthaul.graphs import TargetIndex
from shorthaul.graphs.sampling.candidates.disk_rows import HopRows


@dataclass(frozen=True, eq=False)
class HeldPiece:
    """Nodes in succession; `pointers` count within the columns, from anywhere."""

    nodes: range  # global ids
    pointers: torch.Tensor  # (nodes + 1,)
    sources: torch.Tensor
    edges: torch.Tensor
    relations: torch.Tensor

    @classmethod
    def of(cls, index: TargetIndex, nodes: range, first_node: int = 0) -> HeldPiece:
        """Some nodes of an index whose pointers begin with those of `first_node`."""
        start, stop = nodes.start - first_node, nodes.stop - first_node
        return cls(
            nodes, index.pointers[start : stop + 1], index.sources, index.edges, index.relations
        )

    @property
    def count(self) -> int:
        """Edges."""
        return int(self.pointers[-1]) - int(self.pointers[0])


class HeldRows:
    """Pieces, asked by global ids that ascend."""

    def __init__(self, pieces: Sequence[HeldPiece]) -> None:
        self.pieces = sorted(
            (each for each in pieces if len(each.nodes)), key=lambda each: each.nodes.start
        )
        self._starts = [*itertools.accumulate((each.count for each in self.pieces), initial=0)]

    def holds(self, nodes: torch.Tensor) -> torch.Tensor:
        """Which of `nodes` have their rows here."""
        is_here = torch.zeros(len(nodes), dtype=torch.bool, device="cpu")
        for piece in self.pieces:
            is_here |= (nodes >= piece.nodes.start) & (nodes < piece.nodes.stop)
        return is_here

    def split(self, nodes: torch.Tensor) -> list[int]:
        """Where the nodes of each piece begin among those given, which ascend and are all here."""
        starts = [each.nodes.start for each in self.pieces[1:]]
        wanted = torch.tensor(starts, dtype=nodes.dtype, device="cpu")
        return [0, *torch.searchsorted(nodes, wanted).tolist(), len(nodes)]

    def find(self, nodes: torch.Tensor, *, by_relation: bool) -> HopRows:
        """Where the rows of `nodes` begin and end, and the relations in them where that is asked for."""
        ends, relations = [nodes.new_empty(0)], [nodes.new_empty(0)]
        bounds = self.split(nodes)
        for number, piece in enumerate(self.pieces):
            own = nodes[bounds[number] : bounds[number + 1]].long() - piece.nodes.start
            if not len(own):
                continue
            there = piece.pointers[torch.stack([own, own + 1], dim=1)]
            shift = self._starts[number] - int(piece.pointers[0])
            ends.append((there.long() + shift).to(nodes.dtype).flatten())
            if by_relation:
                relations.append(piece.relations[_positions(there.long())])
        joined = torch.cat(ends)
        if not by_relation:
            return HopRows(joined, None, None)
        row_starts = torch.zeros(len(nodes) + 1, dtype=torch.int64, device="cpu")
        torch.cumsum(joined.view(-1, 2).long().diff()[:, 0], 0, out=row_starts[1:])
        return HopRows(joined, torch.cat(relations), row_starts)

    def read(self, positions: torch.Tensor, bounds: Sequence[int]) -> list[torch.Tensor]:
        """Sources, edge ids and relations; positions of piece p are those from `bounds[p]` on."""
        columns: list[list[torch.Tensor]] = [[positions.new_empty(0)] for _ in range(3)]
        for number, piece in enumerate(self.pieces):
            own = positions[bounds[number] : bounds[number + 1]].long()
            own += int(piece.pointers[0]) - self._starts[number]
            for column, of in zip(
                columns, (piece.sources, piece.edges, piece.relations), strict=True
            ):
                column.append(of[own])
        return [torch.cat(each) for each in columns]


def _positions(ends: torch.Tensor) -> torch.Tensor:
    """All numbers from the begin to the end of each pair, pair by pair.

    >>> _positions(torch.tensor([[5, 7], [1, 2]])).tolist()
    [5, 6, 1]
    """
    degrees = ends.diff()[:, 0]
    begins = torch.cumsum(degrees, 0) - degrees
    within = torch.arange(int(degrees.sum()), dtype=torch.int64, device="cpu")
    return within + torch.repeat_interleave(ends[:, 0] - begins, degrees)
