"""Graphs of every kind that indexes must get right, drawn by hypothesis."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from shorthaul.graphs import RelationalGraph


@dataclass(frozen=True)
class Edges:
    """Edges as lists, with the counts that they live in."""

    nodes: int
    relations: int
    source: list[int]
    target: list[int]
    relation: list[int]

    def graph(self, dtype: torch.dtype | None = None) -> RelationalGraph:
        return RelationalGraph.from_edges(
            torch.tensor(self.source, dtype=torch.int64),
            torch.tensor(self.target, dtype=torch.int64),
            torch.tensor(self.relation, dtype=torch.int64),
            num_nodes=self.nodes,
            num_relations=self.relations,
            index_dtype=dtype,
        )


@st.composite
def edge_lists(draw: st.DrawFn) -> Edges:
    """No edges, isolated nodes, repeated edges, self loops, more relations than edges."""
    nodes = draw(st.integers(1, 12))
    relations = draw(st.integers(1, 20))
    node = st.integers(0, nodes - 1)
    edges = draw(
        st.lists(st.tuples(node, node, st.integers(0, relations - 1)), min_size=0, max_size=40)
    )
    source, target, relation = (
        (list(each) for each in zip(*edges, strict=True)) if edges else ([], [], [])
    )
    return Edges(nodes, relations, source, target, relation)
