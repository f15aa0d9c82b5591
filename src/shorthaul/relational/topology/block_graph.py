"""A sampled block as a graph, without sorting: a block lists its edges by target already."""

from __future__ import annotations

import weakref

import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import Block, RelationalGraph
from shorthaul.graphs.index.indexes import TargetIndex
from shorthaul.graphs.relation import EDGE, NODE, Relation

_graphs: weakref.WeakKeyDictionary[Block, dict[int, RelationalGraph]] = weakref.WeakKeyDictionary()


def graph_of_block(block: Block, num_relations: int) -> RelationalGraph:
    """The graph of a block's sources, of which the first are its targets; kept with the block.

    >>> from shorthaul.graphs import NeighborSampler
    >>> graph = RelationalGraph.from_edges([2, 3, 2], [0, 0, 1], num_nodes=4)
    >>> (block,) = NeighborSampler(graph, [-1]).sample([0, 1]).blocks
    >>> graph_of_block(block, num_relations=1)
    RelationalGraph(4 nodes, 3 edges, 1 relation)
    """
    kept = _graphs.setdefault(block, {})
    if num_relations not in kept:
        relations = block.relations if num_relations > 1 else torch.zeros_like(block.sources)
        kept[num_relations] = graph_of_columns(
            block.pointers, block.sources, relations, block.num_sources, num_relations
        )
    return kept[num_relations]


def graph_of_columns(
    pointers: torch.Tensor,
    sources: torch.Tensor,
    relations: torch.Tensor,
    num_nodes: int,
    num_relations: int,
) -> RelationalGraph:
    """A graph whose edges come by target, and by relation within each target."""
    _require_relations(relations, num_relations)
    dtype, num_targets = sources.dtype, pointers.shape[0] - 1
    degrees = pointers.diff().long()
    targets = torch.repeat_interleave(
        torch.arange(num_targets, dtype=dtype, device=sources.device),
        degrees,
        output_size=sources.shape[0],
    )
    rest = pointers[-1:].expand(num_nodes - num_targets)  # sources that are no targets hear nothing
    index = TargetIndex(
        torch.cat([pointers, rest]),
        sources,
        relations,
        torch.arange(sources.shape[0], dtype=dtype, device=sources.device),
    )
    names = tuple(Relation(NODE, f"{EDGE}_{number}", NODE) for number in range(num_relations))
    return RelationalGraph(
        (NODE,), (num_nodes,), names, sources, targets, relations, indexes={"target": index}
    )


def _require_relations(relations: torch.Tensor, num_relations: int) -> None:
    highest = int(relations.max()) if relations.numel() else -1
    if highest >= num_relations:
        raise LayerArgumentError(
            f"the block has edges of relation {highest}, but the layer was made for {num_relations}",
            "make the layer with the graph's number of relations",
        )
