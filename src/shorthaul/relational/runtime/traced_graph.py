"""A graph that a traced model will be given: tensors that name edges, and how to read them.

While `torch.compile` or `torch.export` look at a model there are no numbers, so no graph can be
indexed. What they record is a call of an operator with the *tensors* of the edges; when the recorded
model runs, the operator finds the graph of these tensors among those that are known, or builds it.

==============  ==================================================================================
form            tensors
==============  ==================================================================================
`columns`       a `RelationalGraph`'s source, target and relation
`edges`         PyG's `edge_index`, and `edge_type` where there are relations
`bipartite`     the same, sources and targets numbered apart
`typed`         one `edge_index` per relation
`block`         a `Block`'s pointers, sources and positions, and the graph's relations
==============  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import Block, RelationalGraph


@dataclass(frozen=True, eq=False)
class TracedGraph:
    """What stands for a graph while a model is traced; the layers ask it what they ask a graph."""

    form: str
    tensors: list[torch.Tensor]
    nodes_per_type: tuple[int, ...]
    relations: tuple[Any, ...]  # names, or numbers where there are none
    num_edges: int
    num_targets: int
    ends: tuple[
        int, ...
    ] = ()  # source type and target type of each relation, where there are types

    @property
    def num_relations(self) -> int:
        """Relations, also those without edges."""
        return len(self.relations)

    @property
    def num_nodes(self) -> int:
        """Nodes of all types."""
        return sum(self.nodes_per_type)

    @property
    def source(self) -> torch.Tensor:
        """(E,) where the edges come from, of the forms that list them."""
        return self._column(0)

    @property
    def target(self) -> torch.Tensor:
        """(E,) where the edges lead."""
        return self._column(1)

    @property
    def relation(self) -> torch.Tensor:
        """(E,) the relation of each edge."""
        if self.form == "columns":
            return self.tensors[2]
        if self.form == "edges" and len(self.tensors) == 1:
            return torch.zeros_like(self.source)
        return self._column(1, of=1)

    def _column(self, number: int, of: int = 0) -> torch.Tensor:
        if self.form == "columns":
            return self.tensors[number]
        if self.form != "edges":
            raise LayerArgumentError(
                f"a layer asks for the edges of a graph of the form `{self.form}` inside "
                "torch.compile",
                "pass a RelationalGraph, or edge_index and edge_type",
            )
        return self.tensors[1] if of else self.tensors[0][number]


def trace_graph(graph: Any, num_targets: int | None, num_relations: int) -> TracedGraph:
    """`graph` in the form in which an operator takes it."""
    if isinstance(graph, TracedGraph):
        return graph
    if isinstance(graph, Block):
        return trace_block(graph, num_relations)
    nodes = graph.nodes_per_type
    ends: tuple[int, ...] = ()
    if len(nodes) > 1:
        ends = find_ends(graph.relations, graph.node_types)
    return TracedGraph(
        "columns",
        [graph.source, graph.target, graph.relation],
        nodes,
        graph.relations,
        graph.source.shape[0],
        sum(nodes) if num_targets is None else num_targets,
        ends,
    )


def find_ends(relations: Sequence[Any], node_types: Sequence[str]) -> tuple[int, ...]:
    """The numbers of the types at both ends of each relation, one after the other."""
    at = {name: number for number, name in enumerate(node_types)}
    return tuple(at[end] for each in relations for end in (each[0], each[2]))


def trace_block(block: Block, num_relations: int) -> TracedGraph:
    """A sampled block; its relations are looked up when the model runs."""
    if block.index is None:
        raise LayerArgumentError(
            "the block came from another process without its graph",
            "`loader.complete(sample)` gives it the loader's graph again",
        )
    columns = [block.pointers, block.sources, block.positions, block.index.relations]
    return TracedGraph(
        "block",
        columns,
        (block.source_nodes.shape[0],),
        tuple(range(num_relations)),
        block.sources.shape[0],
        block.num_targets,
    )


@dataclass(frozen=True)
class EdgeSizes:
    """The numbers that go with the tensors of a traced graph."""

    nodes_per_type: tuple[int, ...]
    num_targets: int
    num_relations: int
    ends: tuple[int, ...]  # source type and target type of each relation, where there are types

    def relations(self) -> list[tuple[str, str, str]]:
        """Names for relations whose own names did not come along."""
        ends = self.ends or (0, 0) * self.num_relations
        return [
            (str(ends[2 * number]), str(number), str(ends[2 * number + 1]))
            for number in range(self.num_relations)
        ]

    def types(self) -> dict[str, int]:
        """Node types under their numbers."""
        return {str(number): count for number, count in enumerate(self.nodes_per_type)}


Builder: TypeAlias = Callable[[Sequence[torch.Tensor], EdgeSizes], RelationalGraph]
BUILDERS: dict[str, Builder] = {}  # how the graph of each form is found when a traced model runs
