"""The rows of an index that a hop of sampling needs, read from disk in one request for all of them.

>>> import torch
>>> from shorthaul.graphs import RelationalGraph
>>> index = RelationalGraph.from_edges([1, 2, 3, 4, 4], [0, 0, 0, 1, 2], [0, 0, 1, 1, 0]).by_target()
>>> read_rows(index, torch.tensor([2, 0], dtype=torch.int32), needs_relations=True)
HopRows(ends=tensor([4, 5, 0, 3], dtype=torch.int32), relations=tensor([0, 0, 0, 1], dtype=torch.int32), \
row_starts=tensor([0, 1, 4]))
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from shorthaul.graphs.index.indexes import TargetIndex


class HopRows(NamedTuple):
    """Where the targets' neighbors lie in the index, and their relations where those are asked for."""

    ends: torch.Tensor  # (2 T,) begin and end of each row
    relations: torch.Tensor | None  # of all rows, one after the other
    row_starts: torch.Tensor | None  # (T + 1,) where each row's relations begin


def read_rows(index: TargetIndex, nodes: torch.Tensor, *, needs_relations: bool) -> HopRows:
    """The rows of `nodes`: a pair of numbers each, and their relations."""
    ends = index.pointers[torch.stack([nodes, nodes + 1], dim=1).flatten()]
    if not needs_relations:
        return HopRows(ends, None, None)
    pairs = ends.view(-1, 2).long()
    row_starts = torch.zeros(len(nodes) + 1, dtype=torch.int64, device="cpu")
    degrees = pairs[:, 1] - pairs[:, 0]
    torch.cumsum(degrees, 0, out=row_starts[1:])
    shifts = torch.repeat_interleave(pairs[:, 0] - row_starts[:-1], degrees)
    relations = index.relations[torch.arange(len(shifts), dtype=torch.int64, device="cpu") + shifts]
    return HopRows(ends, relations, row_starts)
