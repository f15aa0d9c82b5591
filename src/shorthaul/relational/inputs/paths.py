"""The (relation, target) pairs of a graph as targets of their own, for attention within a relation first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from shorthaul.graphs import RelationalGraph
from shorthaul.relational.inputs.kept_graphs import keep_graph
from shorthaul.relational.runtime.traced_graph import trace_graph


def find_paths(graph: Any) -> Any:
    """The graph whose targets are the (relation, target) pairs, one relation after the other.

    Sources keep their numbers, and targets have numbers of their own from 0 on: as many nodes as
    there are of the more numerous of the two. While a model is traced it is a promise of that graph:
    see `build_paths`.
    """
    if torch.compiler.is_compiling():
        traced = trace_graph(graph, None, graph.num_relations)
        return replace(traced, form=f"{traced.form} as paths")

    def make() -> RelationalGraph:
        starts = dict(zip(graph.node_types, graph.node_offsets, strict=False))
        counts = dict(zip(graph.node_types, graph.nodes_per_type, strict=True))
        shifts, total = [], 0
        for each in graph.relations:
            shifts.append(total - starts[each.target_type])
            total += counts[each.target_type]
        target = (
            graph.target.long()
            + torch.tensor(shifts, dtype=torch.int64, device="cpu")[graph.relation.long()]
        )
        return RelationalGraph.from_edges(
            graph.source,
            target,
            graph.relation,
            num_nodes=max(graph.num_nodes, total),
            num_relations=graph.num_relations,
        )

    return keep_graph(("paths",), [graph], make)
