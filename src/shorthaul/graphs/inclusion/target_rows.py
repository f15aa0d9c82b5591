"""A graph's incoming edges, read in order and in pieces: memory grows with nodes, not with edges.

>>> from shorthaul.graphs import RelationalGraph
>>> rows = TargetRows(RelationalGraph.from_edges([1, 2, 0], [0, 0, 2]), piece_edges=2)
>>> [(piece.first, piece.pointers.tolist(), piece.sources.tolist()) for piece in rows.pieces()]
[(0, [0, 2, 2], [1, 2]), (2, [0, 1], [0])]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from shorthaul.graphs.graph import RelationalGraph
from shorthaul.tensors import UnifiedTensor

PIECE_EDGES = 2**22


class Piece(NamedTuple):
    """The rows of some nodes in succession."""

    first: int  # the first node
    pointers: torch.Tensor  # (nodes + 1,) int64, from 0
    sources: torch.Tensor  # global ids


class TargetRows:
    """The `by_target` index of a graph in memory or on disk."""

    def __init__(self, graph: RelationalGraph, piece_edges: int = PIECE_EDGES) -> None:
        self.graph, self.piece_edges = graph, piece_edges
        self.index = graph.by_target()
        self.pointers = read_range(self.index.pointers, 0, graph.num_nodes + 1).long()

    def pieces(self) -> Iterator[Piece]:
        """All rows in the order of the nodes; a piece is as large as `piece_edges`, or one row."""
        for first, stop in cut_rows(self.pointers, self.piece_edges):
            ends = self.pointers[first : stop + 1]
            sources = read_range(self.index.sources, int(ends[0]), int(ends[-1]))
            yield Piece(first, ends - ends[0], sources)


def cut_rows(pointers: torch.Tensor, piece_edges: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows with at most `piece_edges` edges and 4 times as many rows, at least one row each."""
    first, nodes = 0, len(pointers) - 1
    while first < nodes:
        limit = int(pointers[first]) + piece_edges
        stop = int(torch.searchsorted(pointers, limit, right=True)) - 1
        stop = min(max(stop, first + 1), first + 4 * piece_edges, nodes)
        yield first, stop
        first = stop


def read_range(column: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Some numbers of a column in memory or on disk."""
    if isinstance(column, UnifiedTensor):
        return column.table.read(start, stop)
    return column[start:stop]
