"""Graphs and tables larger than one machine, on `torch.distributed` alone."""

from shorthaul.distributed.partition.book import PartitionBook
from shorthaul.distributed.partition.report import PartitionReport, PartReport
from shorthaul.distributed.partition.writing import partition
from shorthaul.distributed.parts import Parts, open
from shorthaul.distributed.tables.distributed_table import DistributedTable
from shorthaul.distributed.tables.traffic import Traffic

__all__ = [
    "DistributedTable",
    "PartReport",
    "PartitionBook",
    "PartitionReport",
    "Parts",
    "Traffic",
    "open",
    "partition",
]
