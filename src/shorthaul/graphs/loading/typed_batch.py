"""Batches as layers of many types take them: features by node type, edges by relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs.attached_data import GatheredEdgeRows
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.relation import Relation
from shorthaul.graphs.sampling.blocks import Block

ByType = Mapping[str, torch.Tensor]


class GraphTypes(NamedTuple):
    """The types of a graph's nodes and edges."""

    node_types: tuple[str, ...]
    offsets: tuple[int, ...]  # where each type's global ids begin, and at last the number of nodes
    relations: tuple[Relation, ...]

    @classmethod
    def of(cls, graph: RelationalGraph) -> GraphTypes:
        """Those of `graph`."""
        return cls(graph.node_types, graph.node_offsets, graph.relations)


@dataclass(frozen=True, eq=False)
class TypedBlock:
    """A block whose nodes are numbered within their types; the targets of each type come first.

    Two ways to run a layer: `layer(block.pairs(x), block.edge_index_dict)` computes targets alone, of layers
    that take sources and targets apart, such as a `HeteroConv`; `block.trim(layer(x, block.edge_index_dict))`
    also serves those that take one set of nodes, such as `HGTConv`.
    """

    positions: ByType  # where the sources of each type are in the block
    num_targets: Mapping[str, int]  # how many of them are targets, by type
    # (2, E) int64 for each relation whose types have sources and targets, also without edges.
    edge_index_dict: Mapping[Relation, torch.Tensor]
    edges: Mapping[Relation, torch.Tensor]  # the graph's edge ids
    # What the loader brings of edges, by name: `layer(.., edge_attr_dict=block.edge_data["stars"])`.
    edge_data: Mapping[str, Mapping[Relation, torch.Tensor]] = field(default_factory=dict)

    def split(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Rows by type.

        Args:
            x: A row for each of the block's sources.
        """
        return {name: x[places] for name, places in self.positions.items()}

    def trim(self, x_dict: ByType) -> dict[str, torch.Tensor]:
        """The rows of targets.

        Args:
            x_dict: A row for each source, by type; types may be missing.
        """
        return {
            name: x_dict[name][:count]
            for name, count in self.num_targets.items()
            if count and name in x_dict
        }

    def pairs(self, x_dict: ByType) -> dict[Relation, tuple[torch.Tensor, torch.Tensor]]:
        """Features of sources and of targets, by relation.

        Args:
            x_dict: A row for each source, by type.
        """
        targets = self.trim(x_dict)  # one tensor for all relations of a type
        return {each: (x_dict[each[0]], targets[each[2]]) for each in self.edge_index_dict}

    def join(self, x_dict: ByType) -> torch.Tensor:
        """A row for each target in the block's order; what is known of types back in one tensor.

        Args:
            x_dict: A row for each target (or more), by type.
        """
        missing = [name for name, count in self.num_targets.items() if count and name not in x_dict]
        if missing:
            raise SamplingError(
                f"there are no rows for targets of type {', '.join(missing)}: no relation leads to them.\n"
                "  Give those types a layer of their own, or leave their nodes out of the seeds."
            )
        counts = {name: count for name, count in self.num_targets.items() if count}
        rows = torch.cat([x_dict[name][:count] for name, count in counts.items()])
        places = torch.cat([self.positions[name][:count] for name, count in counts.items()])
        return rows[torch.argsort(places)]


@dataclass(frozen=True, eq=False)
class HeteroBatch:
    """A batch by types. `model(batch.x_dict, batch.edge_index_dict)` runs a whole model, as PyG's do."""

    x_dict: ByType | None  # a row for each input node; None where the loader has no features
    blocks: Sequence[TypedBlock]  # in the order of the model's layers

    @property
    def edge_index_dict(self) -> Mapping[Relation, torch.Tensor]:
        """All nodes of the batch with the edges that were drawn for the first layer."""
        return self.blocks[0].edge_index_dict

    def seeds(self, out_dict: ByType) -> torch.Tensor:
        """The rows of the batch's seeds, in the order of `batch.seeds`.

        Args:
            out_dict: What a model made, by type: rows of seeds come first.
        """
        return self.blocks[-1].join(out_dict)


def split_block(
    block: Block, types: GraphTypes, edge_data: Mapping[str, GatheredEdgeRows]
) -> TypedBlock:
    """The block with its nodes and edges by type, and rows of its edges by relation."""
    nodes = block.source_nodes
    limits = torch.tensor(types.offsets[1:], dtype=nodes.dtype, device=nodes.device)
    kinds = torch.bucketize(nodes, limits, right=True)
    positions, num_targets = {}, {}
    places = torch.empty(len(nodes), dtype=torch.int64, device=nodes.device)
    for number, name in enumerate(types.node_types):
        own = (kinds == number).nonzero()[:, 0]
        if not len(own):
            continue
        positions[name] = own
        num_targets[name] = int((own < block.num_targets).sum())
        places[own] = torch.arange(len(own), dtype=torch.int64, device=nodes.device)
    source, target = block.edge_index()
    ends, relations = torch.stack([places[source], places[target]]), block.relations.long()
    order = torch.argsort(relations, stable=True)
    counts = torch.bincount(relations, minlength=len(types.relations)).tolist()
    found = zip(
        types.relations,
        torch.split(ends[:, order], counts, 1),
        torch.split(block.edges[order], counts),
        strict=True,
    )
    edge_index_dict, edges = {}, {}
    for relation, own_ends, ids in found:
        if relation.source_type in positions and num_targets.get(relation.target_type):
            edge_index_dict[relation], edges[relation] = own_ends, ids
    data = {}
    for name, rows in edge_data.items():
        known = _split_edge_rows(rows, order, counts, types.relations)
        data[name] = {each: known[each] for each in edges if each in known}
    return TypedBlock(positions, num_targets, edge_index_dict, edges, data)


def _split_edge_rows(
    rows: GatheredEdgeRows,
    order: torch.Tensor,
    counts: Sequence[int],
    relations: Sequence[Relation],
) -> dict[Relation, torch.Tensor]:
    """Rows by relation, in the order in which the relation's edges are in the block."""
    if isinstance(rows, torch.Tensor):
        return dict(zip(relations, torch.split(rows[order], list(counts)), strict=True))
    return {relation: own.rows for relation, own in rows.items()}


def split_features(features: torch.Tensor | ByType | None, block: TypedBlock) -> ByType | None:
    """Features of input nodes by type."""
    if features is None or not isinstance(features, torch.Tensor):
        return features
    return block.split(features)
