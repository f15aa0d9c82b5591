"""Graphs and tables larger than one machine, on `torch.distributed` alone."""

from shorthaul.distributed.partition.book import PartitionBook
from shorthaul.distributed.partition.report import PartitionReport, PartReport
from shorthaul.distributed.partition.writing import partition

__all__ = [
    "PartReport",
    "PartitionBook",
    "PartitionReport",
    "partition",
]
