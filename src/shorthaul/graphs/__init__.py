"""Graphs with typed nodes and relations, and the mini-batches that are drawn from them."""

from shorthaul.graphs.blocks import Block, NeighbourSample
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.indexes import PairIndex, RelationIndex, SourceIndex, TargetIndex
from shorthaul.graphs.mini_batch import MiniBatch
from shorthaul.graphs.mini_batch_loader import MiniBatchLoader
from shorthaul.graphs.neighbour_sampler import NeighbourSampler
from shorthaul.graphs.node_names import NodeNames
from shorthaul.graphs.relation import Relation

__all__ = [
    "Block",
    "MiniBatch",
    "MiniBatchLoader",
    "NeighbourSample",
    "NeighbourSampler",
    "NodeNames",
    "PairIndex",
    "Relation",
    "RelationIndex",
    "RelationalGraph",
    "SourceIndex",
    "TargetIndex",
]
