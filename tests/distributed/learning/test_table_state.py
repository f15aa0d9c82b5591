"""Training goes on from a checkpoint, on as many ranks or others, as if it had never stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import shorthaul as sh
from shorthaul.errors import RowArgumentError
from tests.distributed.part_folders import cut_homogeneous
from tests.distributed.rank_processes import run_ranks

OPTIMIZERS: dict[str, tuple[Any, bool]] = {
    "Adam": (lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1), False),
    "SparseAdam": (lambda p: torch.optim.SparseAdam(p, lr=0.1), True),
    "SGD": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5), False),
    "SGD, sparse": (lambda p: torch.optim.SGD(p, lr=0.1), True),
}


def make(folder: Path, name: str) -> tuple[Any, Any, Any]:
    parts = sh.distributed.open(folder, timeout_seconds=20.0)
    start, sparse = OPTIMIZERS[name]
    table = sh.distributed.LearnableTable(parts, "node", 3, dtype=torch.float64, sparse=sparse)
    loader = sh.distributed.MiniBatchLoader(parts, None, (2,), 8, shuffle=True, seed=1)
    return table, start(table.parameters()), loader


def train(
    table: Any, optimizer: Any, loader: Any, batches: int, end: Callable[[], object] = bool
) -> None:
    for _ in range(2):
        for batch in loader:
            heard = batch.blocks[0].reduce(table(batch.input_nodes), "sum")
            ((1 + heard).square().sum() * batch.loss_scale).backward()
            optimizer.step()
            optimizer.zero_grad()
            batches -= 1
            if batches == 0:
                end()
                return


def save_after_two(rank: int, folder: Path, name: str, place: str) -> None:
    table, optimizer, loader = make(folder, name)
    state = {"table": sh.distributed.TableState(table, optimizer), "loader": loader}
    train(table, optimizer, loader, 2, lambda: dcp.save(state, checkpoint_id=place))


def load_and_end(rank: int, folder: Path, name: str, place: str | None) -> torch.Tensor:
    table, optimizer, loader = make(folder, name)
    if place is None:
        train(table, optimizer, loader, 6)
    else:
        with torch.no_grad():
            table.weight.fill_(7.0)
        state = {"table": sh.distributed.TableState(table, optimizer), "loader": loader}
        dcp.load(state, checkpoint_id=place)
        assert (loader.epoch, loader.step) == (0, 2)
        train(table, optimizer, loader, 4)
    rows: torch.Tensor = table(torch.arange(60)).detach()
    if dist.is_initialized():
        dist.barrier()
    return rows


@pytest.mark.filterwarnings(r"ignore:torch\.distributed is disabled")  # a process alone loads too
@pytest.mark.parametrize(
    "name",
    [
        "Adam",
        "SparseAdam",
        pytest.param("SGD", marks=pytest.mark.slow),
        pytest.param("SGD, sparse", marks=pytest.mark.slow),
    ],
)
def test_training_goes_on_with_another_number_of_ranks(tmp_path: Path, name: str) -> None:
    """In float64, up to the order of sums."""
    parts, place = tmp_path / "parts", str(tmp_path / "saved")
    cut_homogeneous(parts, 4)
    expected = load_and_end(0, parts, name, None)
    run_ranks(save_after_two, 4, tmp_path, parts, name, place)
    for rows in run_ranks(load_and_end, 2, tmp_path, parts, name, place):
        torch.testing.assert_close(rows, expected, rtol=1e-10, atol=1e-12)
    if name == "Adam":
        alone = load_and_end(0, parts, name, place)
        torch.testing.assert_close(alone, expected, rtol=1e-10, atol=1e-12)


def test_an_optimizer_of_something_else_is_refused(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    table, _, _ = make(tmp_path, "Adam")
    other = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(RowArgumentError, match="the table's weight"):
        sh.distributed.TableState(table, other)
