"""The rows that this process reads by itself: its own part's files, and those of ranks beside it.

Files are mapped: the ranks of a machine share the page cache, so that there is one copy of a shard in
memory however many of them read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch

from shorthaul.distributed.partition.mapped import map_file
from shorthaul.distributed.tables.gather_plan import GatherPlan
from shorthaul.tensors import open as open_table
from shorthaul.tensors.tables.table import HostTable, RowTable

Storage = Literal["mapped", "memory", "disk"]
STORAGES: tuple[Storage, ...] = ("mapped", "memory", "disk")


def open_rows(path: Path, storage: Storage) -> RowTable:
    """The rows of one file."""
    if storage == "disk":
        return open_table(path).table
    rows = map_file(path)
    return HostTable(rows.clone() if storage == "memory" else rows)


class NearRows:
    """Tables of some parts, asked by ids of the whole."""

    def __init__(self, offsets: tuple[int, ...], tables: Mapping[int, RowTable]) -> None:
        self.offsets, self.tables = offsets, dict(tables)

    def read(self, plan: GatherPlan, out: torch.Tensor) -> int:
        """Fill `out`, a row for each of the plan's ids, with those that are near; how many they are."""
        count = 0
        for part, start, stop in plan.near:
            ids = plan.ids[start:stop] - self.offsets[part]
            self.tables[part].gather(ids, out[start:stop])
            count += stop - start
        return count

    def serve(self, ids: torch.Tensor, first: int, stop: int, like: torch.Tensor) -> torch.Tensor:
        """The rows of ids that belong to parts `first` to `stop`, in the order of `ids`."""
        rows = like.new_empty((len(ids), *like.shape[1:]))
        for part in range(first, stop):
            is_own = (ids >= self.offsets[part]) & (ids < self.offsets[part + 1])
            at = is_own.nonzero()[:, 0]
            if len(at):
                rows[at] = self.tables[part].gather(ids[at] - self.offsets[part])
        return rows
