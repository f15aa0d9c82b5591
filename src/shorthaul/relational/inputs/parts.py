"""The relations of a model that are computed together, as one graph: each has a range of the sources, and
one of the targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.edge_tensors import require_range
from shorthaul.relational.inputs.kept_graphs import keep_graph
from shorthaul.relational.inputs.self_loops import replace_loops

Types = tuple[str, str, str]


class Part(NamedTuple):
    """Relations, with the types at their two ends; sources and targets are numbered apart."""

    relations: tuple[Types, ...]
    sources: tuple[tuple[str, int], ...]  # types, each with how many nodes
    targets: tuple[tuple[str, int], ...]
    looped: tuple[bool, ...]  # whether every node of a relation that is at both ends hears itself

    @property
    def num_sources(self) -> int:
        """Sources of all types."""
        return sum(count for _, count in self.sources)

    @property
    def num_targets(self) -> int:
        """Targets of all types."""
        return sum(count for _, count in self.targets)


def find_part_graph(part: Part, edges: Sequence[torch.Tensor]) -> RelationalGraph:
    """The graph of these edges, one tensor per relation, kept while they live unchanged."""

    def make() -> RelationalGraph:
        starts = _find_starts(part.sources), _find_starts(part.targets)
        columns = []
        for number, (types, given) in enumerate(zip(part.relations, edges, strict=True)):
            ends = [dict(part.sources)[types[0]], dict(part.targets)[types[2]]]
            _require_edges(given, types)
            plain = given.detach().cpu()
            for row, count, name in zip(plain, ends, ("source", "target"), strict=True):
                require_range(row, count, name, f"`{types[0 if name == 'source' else 2]}` nodes")
            if part.looped[number]:
                plain = replace_loops(plain, min(ends))
            columns.append(
                (
                    plain[0] + starts[0][types[0]],
                    plain[1] + starts[1][types[2]],
                    torch.full_like(plain[0], number),
                )
            )
        source, target, relation = (torch.cat(each) for each in zip(*columns, strict=True))
        return RelationalGraph.from_edges(
            source,
            target,
            relation,
            num_nodes=max(part.num_sources, part.num_targets),
            num_relations=len(part.relations),
        )

    return keep_graph(("part", part), list(edges), make)


def _find_starts(types: Sequence[tuple[str, int]]) -> Mapping[str, int]:
    starts, start = {}, 0
    for name, count in types:
        starts[name] = start
        start += count
    return starts


def _require_edges(edges: torch.Tensor, types: Types) -> None:
    if edges.dim() != 2 or edges.shape[0] != 2 or edges.is_floating_point():
        raise LayerArgumentError(
            f"the edges of {types} are {tuple(edges.shape)} of {edges.dtype}",
            "pass (2, edges) of whole numbers",
        )
