"""Beside a default process group of another backend, as NCCL's is: rows and neighbors travel over gloo all the same.

The other backend is PyTorch's fake one, whose collectives do nothing: whatever went over it would be wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401  (registers the backend)

import shorthaul as sh
from tests.distributed.part_folders import cut_homogeneous
from tests.distributed.rank_processes import run_ranks


def begin_anew(rank: int, folder: Path, backend: str) -> None:
    """A default group of `backend` in place of that which ranks have here."""
    dist.barrier()  # or one might leave while the other is still connecting
    dist.destroy_process_group()
    store = dist.FileStore(f"{folder}/store-{backend}", 2)
    dist.init_process_group(backend, rank=rank, world_size=2, store=store)


def train(rank: int, folder: Path, backend: str, topology: Any) -> list[Any]:
    """Batches and a learned step, with a default group of `backend`."""
    begin_anew(rank, folder, backend)
    parts = sh.distributed.open(
        folder, topology=topology, shares_machine=False, timeout_seconds=20.0
    )
    features, table = parts.features(), sh.distributed.LearnableTable(parts, "node", 3)
    given = {"features": features, "labels": parts.labels(), "batch_size": 7}
    seen: list[Any] = []
    for batch in sh.distributed.MiniBatchLoader(parts, None, (3, 2), **given):
        table(batch.input_nodes).sum().backward()
        edges = [block.edges.tolist() for block in batch.blocks]
        seen.append((batch.seeds.tolist(), edges, batch.features.tolist(), batch.labels.tolist()))
    assert table.weight.grad is not None
    seen.append(table.weight.grad.to_dense().tolist())
    for batch in sh.distributed.MiniBatchLoader(parts, None, (3, 2), device="meta", **given):
        moved = (batch.features, batch.labels, batch.seeds, batch.blocks[0].sources)
        assert {each.device.type for each in moved} == {"meta"}
        seen.append([tuple(each.shape) for each in moved])
    return seen


@pytest.mark.parametrize("topology", ["split", pytest.param("replicated", marks=pytest.mark.slow)])
def test_nothing_goes_over_the_default_group(tmp_path: Path, topology: str) -> None:
    cut_homogeneous(tmp_path, 2)
    fake, gloo = (
        run_ranks(train, 2, tmp_path, tmp_path, backend, topology) for backend in ("fake", "gloo")
    )
    assert fake == gloo
    assert all(len(each) > 2 for each in fake)


def add_up(rank: int, folder: Path) -> float:
    begin_anew(rank, folder, "fake")
    one = torch.ones(1)
    dist.all_reduce(one)
    return float(one)


def test_the_fake_group_would_be_noticed(tmp_path: Path) -> None:
    assert run_ranks(add_up, 2, tmp_path, tmp_path) == [1.0, 1.0]
