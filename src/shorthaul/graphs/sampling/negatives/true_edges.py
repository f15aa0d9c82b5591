"""The edges that no negative may be, ready to be looked up, in memory and on disk.

>>> graph = RelationalGraph.from_edges([2, 0, 1], [0, 0, 1])
>>> sort_true_edges(graph).sources.tolist()  # into node 0, then into node 1
[0, 2, 1]
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from shorthaul.graphs.edge_tensors import as_plain
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.sampling.negatives.kernels import negative_kernels
from shorthaul.tensors import UnifiedTensor


class TrueEdges(NamedTuple):
    """Edges into each node, by relation, then by source; `None` where negatives may be anything."""

    pointers: torch.Tensor | None = None
    relations: torch.Tensor | None = None
    sources: torch.Tensor | None = None


class TargetRows(NamedTuple):
    """The edges into some nodes, one row after the other."""

    starts: torch.Tensor
    relations: torch.Tensor
    sources: torch.Tensor


def lies_on_disk(graph: RelationalGraph) -> bool:
    """Whether looking an edge up would read it."""
    index = graph.by_target()
    columns = (index.pointers, index.sources, index.relations)
    return any(isinstance(each, UnifiedTensor) and each.kind == "disk" for each in columns)


def sort_true_edges(graph: RelationalGraph) -> TrueEdges:
    """All edges, in memory."""
    index = graph.by_target()
    pointers, relations = as_plain(index.pointers), as_plain(index.relations)
    sources = as_plain(index.sources).clone()
    negative_kernels(graph.index_dtype).sort_sources(pointers, relations, sources)
    return TrueEdges(pointers, relations, sources)


def read_target_rows(graph: RelationalGraph, targets: torch.Tensor) -> TargetRows:
    """The rows of `targets`, each read once; a negative number has an empty row."""
    distinct, places = torch.unique(targets.clamp(min=0), return_inverse=True)
    index = graph.by_target()
    ends = as_plain(index.pointers[torch.stack([distinct, distinct + 1], dim=1).flatten()])
    pairs = ends.view(-1, 2).long()
    degrees = pairs[:, 1] - pairs[:, 0]
    positions = _list_rows(pairs[:, 0], degrees)
    relations = as_plain(index.relations[positions])
    sources = as_plain(index.sources[positions])
    firsts = torch.cumsum(degrees, 0) - degrees
    wanted = torch.where(targets < 0, 0, degrees[places])
    starts = torch.zeros(targets.shape[0] + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(wanted, 0, out=starts[1:])
    copies = _list_rows(firsts[places], wanted)
    return TargetRows(starts, relations[copies], sources[copies])


def _list_rows(firsts: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """`firsts[r]` and the `counts[r] - 1` numbers after it, for each row."""
    ends = torch.cumsum(counts, 0)
    shifts = torch.repeat_interleave(firsts - (ends - counts), counts)
    return shifts + torch.arange(shifts.shape[0], dtype=torch.int64, device="cpu")
