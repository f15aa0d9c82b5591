"""The relations of a model that are computed together, as one graph: each reads one of several sets of
sources and writes one of several sets of targets, which have a range of its nodes each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.edge_tensors import require_range
from shorthaul.relational.inputs.kept_graphs import keep_graph

Types = tuple[str, str, str]


class Loops(NamedTuple):
    """One edge to each target of a relation from the node that it is among the sources."""

    rows: int  # the set of sources that has the targets' rows
    kind: str  # "replaced": loops that were there are taken out; "added": all edges stay


class Part(NamedTuple):
    """Relations, with the sets at their two ends; sources and targets are numbered apart."""

    relations: tuple[Types, ...]
    sources: tuple[int, ...]  # how many nodes each set has
    targets: tuple[int, ...]
    ends: tuple[tuple[int, int], ...]  # of each relation: which set of sources, and of targets
    loops: tuple[Loops | None, ...]  # of each relation; None: only its edges

    @property
    def num_sources(self) -> int:
        """Sources of all sets."""
        return sum(self.sources)

    @property
    def num_targets(self) -> int:
        """Targets of all sets."""
        return sum(self.targets)


def find_part_graph(part: Part, edges: Sequence[torch.Tensor]) -> RelationalGraph:
    """The graph of these edges, one tensor per relation, kept while they live unchanged."""

    def make() -> RelationalGraph:
        starts = _find_starts(part.sources), _find_starts(part.targets)
        columns = []
        for number, (types, given) in enumerate(zip(part.relations, edges, strict=True)):
            one, other = part.ends[number]
            ends = part.sources[one], part.targets[other]
            _require_edges(given, types)
            plain = given.detach().cpu()
            for row, count, name in zip(plain, ends, ("source", "target"), strict=True):
                require_range(row, count, name, f"`{types[0 if name == 'source' else 2]}` nodes")
            loops, firsts = part.loops[number], (starts[0][one], starts[1][other])
            shifted = [row + first for row, first in zip(plain, firsts, strict=True)]
            if loops is not None:
                if loops.kind == "replaced":
                    kept = plain[0] != plain[1]
                    shifted = [each[kept] for each in shifted]
                own = starts[0][loops.rows], starts[1][other]
                nodes = torch.arange(
                    min(part.sources[loops.rows], ends[1]), dtype=plain.dtype, device=plain.device
                )
                shifted = [
                    torch.cat([each, nodes + first])
                    for each, first in zip(shifted, own, strict=True)
                ]
            columns.append((*shifted, torch.full_like(shifted[0], number)))
        source, target, relation = (torch.cat(each) for each in zip(*columns, strict=True))
        return RelationalGraph.from_edges(
            source,
            target,
            relation,
            num_nodes=max(part.num_sources, part.num_targets),
            num_relations=len(part.relations),
        )

    return keep_graph(("part", part), list(edges), make)


def _find_starts(counts: Sequence[int]) -> list[int]:
    return [0, *accumulate(counts)]


def _require_edges(edges: torch.Tensor, types: Types) -> None:
    if edges.dim() != 2 or edges.shape[0] != 2 or edges.is_floating_point():
        raise LayerArgumentError(
            f"the edges of {types} are {tuple(edges.shape)} of {edges.dtype}",
            "pass (2, edges) of whole numbers",
        )
