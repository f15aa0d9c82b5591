"""Graphs and tables larger than one machine, on `torch.distributed` alone."""

from shorthaul.distributed.learning.learnable_table import LearnableTable
from shorthaul.distributed.learning.table_state import TableState
from shorthaul.distributed.loading.mini_batch_loader import MiniBatchLoader
from shorthaul.distributed.loading.rank_batch import RankBatch
from shorthaul.distributed.partition.book import PartitionBook
from shorthaul.distributed.partition.report import PartitionReport, PartReport
from shorthaul.distributed.partition.writing import partition
from shorthaul.distributed.parts import Parts, open
from shorthaul.distributed.tables.distributed_table import DistributedTable
from shorthaul.distributed.tables.traffic import Traffic
from shorthaul.distributed.whole_graph.whole_graph import WholeGraph

__all__ = [
    "DistributedTable",
    "LearnableTable",
    "MiniBatchLoader",
    "PartReport",
    "PartitionBook",
    "PartitionReport",
    "Parts",
    "RankBatch",
    "TableState",
    "Traffic",
    "WholeGraph",
    "open",
    "partition",
]
