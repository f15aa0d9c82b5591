"""Graphs with typed nodes and relations, and the mini-batches that are drawn from them."""

from shorthaul.graphs.blocks import Block, NeighbourSample
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.indexes import PairIndex, RelationIndex, SourceIndex, TargetIndex
from shorthaul.graphs.neighbour_sampler import NeighbourSampler
from shorthaul.graphs.relation import Relation

__all__ = [
    "Block",
    "NeighbourSample",
    "NeighbourSampler",
    "PairIndex",
    "Relation",
    "RelationIndex",
    "RelationalGraph",
    "SourceIndex",
    "TargetIndex",
]
