"""Data of the edges of a batch: weights, attributes and times, read for the edges of its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shorthaul.errors import SamplingError
from shorthaul.graphs.attached_data import EdgeRows, GatheredEdgeRows, gather_edge_rows
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.loading.feature_rows import as_table
from shorthaul.graphs.relation import Relation
from shorthaul.graphs.sampling.blocks import Block
from shorthaul.tensors.tables.table import RowTable

Tables = RowTable | Mapping[Relation, RowTable]


class EdgeColumns:
    """Finds the rows of a graph's edge data by the edges of blocks.

    >>> import torch
    >>> from shorthaul.graphs import NeighborSampler
    >>> graph = RelationalGraph.from_edges([1, 2], [0, 0]).with_data(edges={"weight": [0.5, 2.0]})
    >>> sample = NeighborSampler(graph, [-1]).sample([0])
    >>> EdgeColumns(graph, "weight").gather(sample.blocks)
    [{'weight': tensor([0.5000, 2.0000])}]
    """

    def __init__(self, graph: RelationalGraph, names: str | Sequence[str] | None) -> None:
        self.graph = graph
        named = [names] if isinstance(names, str) else [*(names or ())]
        self.tables = {each: _find_tables(graph, each) for each in named}

    def gather(self, blocks: Sequence[Block]) -> list[dict[str, GatheredEdgeRows]] | None:
        """For each block, the rows of its edges by name; None where none were asked for."""
        if not self.tables:
            return None
        return [self._gather(block) for block in blocks]

    def _gather(self, block: Block) -> dict[str, GatheredEdgeRows]:
        return {
            name: gather_edge_rows(
                self.graph, tables, block.edges.cpu(), lambda: block.relations.cpu()
            )
            for name, tables in self.tables.items()
        }


def _find_tables(graph: RelationalGraph, name: str) -> Tables:
    if name not in graph.edge_data:
        known = ", ".join(f"`{each}`" for each in graph.edge_data) or "none"
        raise SamplingError(
            f"the graph has no edge data {name!r}; it has {known}.\n"
            f"  `graph.with_data(edges={{{name!r}: rows}})` gives it some."
        )
    rows: EdgeRows = graph.edge_data[name]
    where = f"edge_data[{name!r}]"
    if not isinstance(rows, Mapping):
        return as_table(rows, where, graph.num_edges, "edges")
    counts = dict(zip(graph.relations, graph.edges_per_relation, strict=True))
    return {
        relation: as_table(own, f"{where}[{tuple(relation)}]", counts[relation], "edges")
        for relation, own in rows.items()
    }
