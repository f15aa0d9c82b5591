"""Data sets for `bench_loader_workers.py`, in a module that spawned workers can import."""

from __future__ import annotations

from typing import Any

import torch


class GatheredBatches(torch.utils.data.Dataset[torch.Tensor]):
    """What is usual: a worker gathers the rows of a batch and sends them."""

    def __init__(self, table: Any, batches: list[torch.Tensor]) -> None:
        self.table, self.batches = table, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.table[self.batches[number]]


class BatchIds(torch.utils.data.Dataset[torch.Tensor]):
    """A worker finds out which rows a batch has, and sends their ids."""

    def __init__(self, batches: list[torch.Tensor]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.batches[number].clone()
