"""Graphs with typed nodes and relations, and the mini-batches that are drawn from them."""

from shorthaul.graphs import readers, saving  # noqa: F401  (they enter the graph's doors)
from shorthaul.graphs.databases.from_tables import DatabaseGraph, from_tables
from shorthaul.graphs.databases.relbench import (
    TaskLinks,
    TaskSeeds,
    from_relbench,
    read_task,
)
from shorthaul.graphs.databases.tables import Table
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.inclusion.inclusion import estimate_inclusion
from shorthaul.graphs.index.indexes import PairIndex, RelationIndex, SourceIndex, TargetIndex
from shorthaul.graphs.interop import dgl, pyg  # noqa: F401
from shorthaul.graphs.interop.accelerate_loader import accelerate_loader
from shorthaul.graphs.loading.link_batch import LinkBatch
from shorthaul.graphs.loading.link_loader import LinkLoader
from shorthaul.graphs.loading.mini_batch import MiniBatch
from shorthaul.graphs.loading.mini_batch_loader import MiniBatchLoader
from shorthaul.graphs.loading.typed_batch import HeteroBatch, TypedBlock
from shorthaul.graphs.node_names import NodeNames
from shorthaul.graphs.relation import Relation
from shorthaul.graphs.sampling.blocks import Block, NeighborSample
from shorthaul.graphs.sampling.budgets.hgt_sampler import HGTSampler
from shorthaul.graphs.sampling.negatives.negative_sampler import NegativeEdges, NegativeSampler
from shorthaul.graphs.sampling.sampler import NeighborSampler
from shorthaul.graphs.streams.write_graph import add_indexes, write_graph

__all__ = [
    "Block",
    "DatabaseGraph",
    "HGTSampler",
    "HeteroBatch",
    "LinkBatch",
    "LinkLoader",
    "MiniBatch",
    "MiniBatchLoader",
    "NegativeEdges",
    "NegativeSampler",
    "NeighborSample",
    "NeighborSampler",
    "NodeNames",
    "PairIndex",
    "Relation",
    "RelationIndex",
    "RelationalGraph",
    "SourceIndex",
    "Table",
    "TargetIndex",
    "TaskLinks",
    "TaskSeeds",
    "TypedBlock",
    "accelerate_loader",
    "add_indexes",
    "estimate_inclusion",
    "from_relbench",
    "from_tables",
    "read_task",
    "write_graph",
]
