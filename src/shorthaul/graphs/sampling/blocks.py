"""What a sample is made of: one compact block for each layer of a model.

A block is a bipartite graph from source nodes to target nodes with numbers of its own: local id `n`
is node `source_nodes[n]`, no node is there twice, and the targets come first, so that a layer finds
its own nodes among its inputs: `x[: block.num_targets]`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs.index.indexes import TargetIndex
from shorthaul.graphs.sampling.block_sums import reduce_block
from shorthaul.tensors.cuda.gather import copy_ahead
from shorthaul.tensors.kernels.stored_rows import FLOATING

REDUCTIONS = ("sum", "mean", "max")


@dataclass(frozen=True, eq=False, repr=False)
class Block:
    """The edges that one layer works on.

    >>> import torch
    >>> from shorthaul.graphs import NeighborSampler, RelationalGraph
    >>> graph = RelationalGraph.from_edges([2, 3, 2], [0, 0, 1], num_nodes=4)
    >>> (block,) = NeighborSampler(graph, [-1]).sample(torch.tensor([0, 1])).blocks
    >>> block, block.source_nodes.tolist()
    (Block(4 sources, 2 targets, 3 edges), [0, 1, 2, 3])
    >>> block.sources[block.pointers[0] : block.pointers[1]].tolist()  # who reaches target 0
    [2, 3]
    >>> block.reduce(torch.tensor([[1.0], [2.0], [3.0], [5.0]]), "mean")
    tensor([[4.],
            [3.]])
    """

    source_nodes: torch.Tensor  # (S,) global ids; the first `num_targets` are the targets
    num_targets: int  # nodes that hear
    pointers: torch.Tensor  # (T + 1,): target t hears from sources[pointers[t]:pointers[t + 1]]
    sources: torch.Tensor  # (E,) local ids
    positions: torch.Tensor  # (E,) places in the graph's `by_target()` index
    index: TargetIndex | None  # where relations and edge ids are looked up

    @property
    def num_sources(self) -> int:
        """Nodes that the layer reads, targets included."""
        return self.source_nodes.shape[0]

    @property
    def num_edges(self) -> int:
        """Edges that the layer follows."""
        return self.sources.shape[0]

    @property
    def target_nodes(self) -> torch.Tensor:
        """Global ids of the nodes that the layer writes."""
        return self.source_nodes[: self.num_targets]

    @functools.cached_property
    def relations(self) -> torch.Tensor:
        """(E,) the relation of each edge, ascending within each target; looked up when asked for."""
        return self._look_up("relations")

    @functools.cached_property
    def edges(self) -> torch.Tensor:
        """(E,) the graph's edge ids, for edge features; looked up when asked for."""
        return self._look_up("edges")

    def degrees(self) -> torch.Tensor:
        """(T,) how many edges each target has in the block."""
        return self.pointers.diff()

    def edge_index(self) -> torch.Tensor:
        """(2, E) int64: local sources and local targets, as PyG's layers take them.

        `layer((x, x[: block.num_targets]), block.edge_index())` runs a bipartite layer on a block.
        """
        targets = torch.repeat_interleave(self.degrees().long(), output_size=self.num_edges)
        return torch.stack([self.sources.long(), targets])

    def reduce(self, x: torch.Tensor, op: str = "mean") -> torch.Tensor:
        """(T, features): what each target hears from its sources; zeros where it has none.

        Args:
            x: A row for each source node; gradients flow back to it.
            op: `"sum"`, `"mean"` (default) or `"max"`.
        """
        if op not in REDUCTIONS:
            raise SamplingError(f"op must be one of {', '.join(REDUCTIONS)}, got {op!r}.")
        if x.dim() != 2 or x.shape[0] != self.num_sources:
            raise SamplingError(
                f"x must have a row for each of the block's {self.num_sources:,} source nodes, "
                f"got shape {tuple(x.shape)}."
            )
        if op != "max" and x.device.type == "cpu" and x.dtype in FLOATING:
            reduced: torch.Tensor = reduce_block(x, self.pointers, self.sources, op == "mean")
            return reduced
        return torch.nn.functional.embedding_bag(
            self.sources, x, self.pointers, mode=op, include_last_offset=True
        )

    def to(self, device: torch.device | str) -> Block:
        """The same on another device; `relations` and `edges` are looked up there when asked for."""
        return replace(
            self,
            source_nodes=copy_ahead(self.source_nodes, device),
            pointers=copy_ahead(self.pointers, device),
            sources=copy_ahead(self.sources, device),
            positions=copy_ahead(self.positions, device),
        )

    def _look_up(self, name: str) -> torch.Tensor:
        if self.index is None:
            raise SamplingError(
                f"a block that came from another process does not know its {name}: its graph stayed "
                "there.\n  `loader.complete(sample)` gives it the loader's graph again."
            )
        column: torch.Tensor = getattr(self.index, name)
        return column[self.positions.cpu()].to(self.positions.device)

    def __getstate__(self) -> dict[str, object]:
        # The graph does not travel with every block that a worker sends.
        return {**{name: vars(self)[name] for name in self.__dataclass_fields__}, "index": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)

    def __repr__(self) -> str:
        return (
            f"Block({self.num_sources:,} sources, {self.num_targets:,} targets, "
            f"{self.num_edges:,} edges)"
        )


@dataclass(frozen=True, eq=False, repr=False)
class NeighborSample:
    """The blocks around some seeds, in the order in which a model's layers use them."""

    seeds: torch.Tensor  # distinct seeds in the order they were given: the last block's targets
    seed_rows: torch.Tensor  # for each seed as it was given, its position in `seeds`
    blocks: Sequence[Block]  # the first layer's block first
    number: int  # which sample of its sampler, or of its epoch, it is
    trees: torch.Tensor | None = None  # of disjoint samples: the seed of each input node
    inputs: torch.Tensor | None = None  # of a loader: which of its seeds were given

    @property
    def input_nodes(self) -> torch.Tensor:
        """Global ids of the nodes whose features the first layer reads."""
        return self.blocks[0].source_nodes if self.blocks else self.seeds

    def to(self, device: torch.device | str) -> NeighborSample:
        """The same on another device; `inputs`, which count the loader's seeds, stay where they are."""
        return replace(
            self,
            seeds=copy_ahead(self.seeds, device),
            seed_rows=copy_ahead(self.seed_rows, device),
            blocks=[each.to(device) for each in self.blocks],
            trees=None if self.trees is None else copy_ahead(self.trees, device),
        )

    def __repr__(self) -> str:
        inner = " -> ".join(f"{each.num_sources:,}" for each in self.blocks)
        return f"NeighborSample({inner} -> {self.seeds.shape[0]:,} nodes)"
