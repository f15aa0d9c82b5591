"""What a `MiniBatchLoader` hands out: everything that one step of training reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs.attached_data import GatheredEdgeRows, PlacedRows
from shorthaul.graphs.loading.typed_batch import (
    GraphTypes,
    HeteroBatch,
    split_block,
    split_features,
)
from shorthaul.graphs.sampling.blocks import Block
from shorthaul.tensors.cuda.gather import copy_ahead

Rows = torch.Tensor | Mapping[str, torch.Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class MiniBatch:
    """The blocks around some seeds, with the features of their input nodes and the seeds' labels.

    Its memory is used for a later batch as soon as nothing refers to it any more; whoever keeps a
    batch, or any tensor of it, keeps its values.
    """

    number: int  # within the epoch
    seeds: torch.Tensor  # global ids, each once: what the last block writes, in that order
    seed_rows: torch.Tensor  # for each seed as it was given, its position in `seeds`
    blocks: Sequence[Block]  # in the order of the model's layers
    features: Rows | None  # a row for each of `input_nodes`, or of each type's among them
    labels: torch.Tensor | None  # one for each of `seeds`; of `seed_labels`, as they were given
    type_positions: Mapping[str, torch.Tensor] | None = None  # where each type's input nodes are
    trees: torch.Tensor | None = None  # of disjoint samples: the seed of each input node
    inputs: torch.Tensor | None = None  # which of the loader's seeds were given
    graph_types: GraphTypes | None = None  # of the graph's nodes and edges
    # For each block, what the loader brings of its edges: a row for each by name, or by relation.
    edge_data: Sequence[Mapping[str, GatheredEdgeRows]] | None = None

    @property
    def input_nodes(self) -> torch.Tensor:
        """Global ids of the nodes whose features the first layer reads."""
        return self.blocks[0].source_nodes if self.blocks else self.seeds

    def to_hetero(self) -> HeteroBatch:
        """The same by types, for layers such as `HeteroConv` and `HGTConv`, and models of `to_hetero`.

        >>> import torch
        >>> from shorthaul.graphs import MiniBatchLoader, RelationalGraph
        >>> from shorthaul.relational import HeteroConv, SAGEConv
        >>> relation = ("author", "writes", "paper")
        >>> graph = RelationalGraph.from_typed_edges({relation: torch.tensor([[0, 1, 1], [0, 0, 1]])})
        >>> features = {"author": torch.randn(2, 8), "paper": torch.randn(2, 8)}
        >>> layer = HeteroConv({relation: SAGEConv((8, 8), 4)})
        >>> for batch in MiniBatchLoader(graph, features, seeds=("paper", [1, 0]), fan_outs=[-1]):
        ...     typed = batch.to_hetero()
        ...     (block,) = typed.blocks
        ...     out = typed.seeds(layer(block.pairs(typed.x_dict), block.edge_index_dict))
        >>> out.shape  # a row for each of batch.seeds
        torch.Size([2, 4])
        """
        if self.graph_types is None or not self.blocks:
            lacking = "blocks" if not self.blocks else "types of its graph"
            raise SamplingError(
                f"a batch without {lacking} was asked for its types.\n"
                "  Take batches of `sh.MiniBatchLoader` or `sh.LinkLoader`, with at least one hop."
            )
        nothing: list[Mapping[str, GatheredEdgeRows]] = [{}] * len(self.blocks)
        rows = nothing if self.edge_data is None else self.edge_data
        blocks = [
            split_block(block, self.graph_types, own)
            for block, own in zip(self.blocks, rows, strict=True)
        ]
        return HeteroBatch(split_features(self.features, blocks[0]), blocks)

    def to(self, device: torch.device | str) -> MiniBatch:
        """The same on another device."""

        def move(value: torch.Tensor) -> torch.Tensor:
            return copy_ahead(value, device)

        def move_rows(rows: Rows | None) -> Rows | None:
            if rows is None or isinstance(rows, torch.Tensor):
                return rows if rows is None else move(rows)
            return {name: move(each) for name, each in rows.items()}

        def move_edges(rows: GatheredEdgeRows) -> GatheredEdgeRows:
            if isinstance(rows, torch.Tensor):
                return move(rows)
            return {name: PlacedRows(*map(move, each)) for name, each in rows.items()}

        positions = move_rows(self.type_positions)
        assert not isinstance(positions, torch.Tensor)
        return replace(
            self,
            seeds=move(self.seeds),
            seed_rows=move(self.seed_rows),
            blocks=[each.to(device) for each in self.blocks],
            features=move_rows(self.features),
            labels=None if self.labels is None else move(self.labels),
            type_positions=positions,
            trees=None if self.trees is None else move(self.trees),
            inputs=None if self.inputs is None else move(self.inputs),
            edge_data=None
            if self.edge_data is None
            else [{name: move_edges(own) for name, own in each.items()} for each in self.edge_data],
        )

    def __repr__(self) -> str:
        return (
            f"MiniBatch({self.number}: {self.seeds.shape[0]:,} seeds, "
            f"{self.input_nodes.shape[0]:,} input nodes)"
        )
