"""Graphs with typed nodes and relations, and the mini-batches that are drawn from them."""

from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.indexes import PairIndex, RelationIndex, SourceIndex, TargetIndex
from shorthaul.graphs.relation import Relation

__all__ = [
    "PairIndex",
    "Relation",
    "RelationIndex",
    "RelationalGraph",
    "SourceIndex",
    "TargetIndex",
]
