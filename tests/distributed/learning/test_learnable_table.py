"""Embeddings on many ranks train as `nn.Embedding` does on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.errors import RowArgumentError
from tests.distributed.part_folders import cut_homogeneous
from tests.distributed.rank_processes import run_failing_ranks, run_ranks

ROWS, WIDTH, STEPS = 60, 5, 4
OPTIMIZERS: dict[str, tuple[Any, bool]] = {
    "SGD": (lambda p: torch.optim.SGD(p, lr=0.3), True),
    "SGD, dense, momentum": (lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9), False),
    "Adam": (lambda p: torch.optim.Adam(p, lr=0.1), False),
    "SparseAdam": (lambda p: torch.optim.SparseAdam(p, lr=0.1), True),
}


def ids_of_step(step: int) -> torch.Tensor:
    """Those of all ranks, some of them twice, also on one rank."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(ROWS, (24,), generator=generator) // (1 + step % 2)


def losses_of(rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return (rows.tanh() * (1 + ids[:, None] % 3)).square().sum()


def first_rows(start: int, stop: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(9)
    return torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator)[start:stop]


def train_alone(name: str, accumulate: int) -> torch.Tensor:
    make, sparse = OPTIMIZERS[name]
    table = nn.Embedding(ROWS, WIDTH, sparse=sparse, _weight=first_rows(0, ROWS))
    optimizer = make(table.parameters())
    for step in range(STEPS):
        ids = ids_of_step(step)
        (losses_of(table(ids), ids) / len(ids)).backward()
        if (step + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return table.weight.detach()


def train_ranks(rank: int, folder: Path, name: str, ranks: int, accumulate: int) -> Any:
    make, sparse = OPTIMIZERS[name]
    parts = sh.distributed.open(folder, timeout_seconds=20.0)
    table = sh.distributed.LearnableTable(
        parts, "node", WIDTH, dtype=torch.float64, sparse=sparse, initial=first_rows
    )
    optimizer = make(table.parameters())
    for step in range(STEPS):
        whole = ids_of_step(step)
        ids = whole[rank::ranks] if ranks < 4 or rank != 2 else whole[:0]
        if ranks == 4 and rank == 3:
            ids = torch.cat([whole[3::4], whole[2::4]])  # one rank has none, another twice as many
        loss = losses_of(table(ids), ids) * ranks / len(whole)
        loss.backward()
        if (step + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    everything = table(torch.arange(ROWS)).detach()
    return everything, len(table.weight), table.report()


@pytest.mark.parametrize(
    "name",
    ["SGD", "Adam", "SparseAdam", pytest.param("SGD, dense, momentum", marks=pytest.mark.slow)],
)
def test_a_step_is_that_of_an_embedding_on_one_process(tmp_path: Path, name: str) -> None:
    """Sums of gradients come in another order, so rows are equal but for float64's rounding."""
    cut_homogeneous(tmp_path, 4)
    ranks, accumulate = (4, 1) if name != "SGD" else (2, 2)
    expected = train_alone(name, accumulate)
    found = run_ranks(train_ranks, ranks, tmp_path, tmp_path, name, ranks, accumulate)
    assert sum(own for _, own, _ in found) == ROWS
    for rows, _, _ in found:
        torch.testing.assert_close(rows, expected, rtol=1e-10, atol=1e-12)
    alone, own, _ = train_ranks(0, tmp_path, name, 1, accumulate)
    assert own == ROWS
    torch.testing.assert_close(alone, expected, rtol=1e-12, atol=1e-14)


OTHERS: dict[str, tuple[Any, bool]] = {
    "SGD, sparse, momentum": (lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9), True),
    "SGD, nesterov, decay": (
        lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, nesterov=True, weight_decay=0.1),
        False,
    ),
    "Adam, amsgrad, decay": (
        lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1, amsgrad=True),
        False,
    ),
    "AdamW": (lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1), False),
    "Adagrad, sparse": (lambda p: torch.optim.Adagrad(p, lr=0.1), True),
    "RMSprop": (lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True), False),
}


def odd_ids_of_step(step: int) -> torch.Tensor:
    """A step without ids, one with a single id many times, and ones that leave ranks out."""
    return {1: torch.empty(0, dtype=torch.int64), 2: torch.full((24,), 7)}.get(
        step, ids_of_step(step)
    )


def train_others(rank: int, folder: Path, ranks: int) -> dict[str, torch.Tensor]:
    """Rows after steps that read twice, for each optimizer; of a plain embedding where there are no ranks."""
    parts = sh.distributed.open(folder, timeout_seconds=20.0) if ranks else None
    found = {}
    for name, (make, sparse) in OTHERS.items():
        table: nn.Module = (
            nn.Embedding(ROWS, WIDTH, sparse=sparse, _weight=first_rows(0, ROWS))
            if parts is None
            else sh.distributed.LearnableTable(
                parts, "node", WIDTH, dtype=torch.float64, sparse=sparse, initial=first_rows
            )
        )
        optimizer = make(table.parameters())
        for step in range(6):
            whole = odd_ids_of_step(step)
            ids = whole[rank :: max(1, ranks)]
            loss = losses_of(table(ids), ids) + table(ids.flip(0)).sum()
            (loss * max(1, ranks) / 24).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        found[name] = table(torch.arange(ROWS)).detach()
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # torch's own Adagrad
@pytest.mark.parametrize("ranks", [2, 4])
def test_other_optimizers_take_the_same_steps(tmp_path: Path, ranks: int) -> None:
    cut_homogeneous(tmp_path, 4)
    expected = train_others(0, tmp_path, 0)
    for found in run_ranks(train_others, ranks, tmp_path, tmp_path, ranks):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_the_comparison_would_notice_a_lost_gradient(tmp_path: Path) -> None:
    one, other = train_alone("SGD", 1), train_alone("SGD", 2)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def count_rows(rank: int, folder: Path) -> Any:
    table = sh.distributed.LearnableTable(sh.distributed.open(folder), "node", WIDTH)
    ids = torch.tensor([0, 59, 59, 0, 31])
    table(ids).sum().backward()
    return table.weight.grad.to_dense().sum().item(), table.first, table.report()


def test_a_row_travels_once_in_each_direction(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2, method="range")
    (one, first, told), (other, second, heard) = run_ranks(count_rows, 2, tmp_path, tmp_path)
    assert (first, second) == (0, 30)
    assert (one, other) == (2 * WIDTH * 2 / 2, 2 * WIDTH * 3 / 2)
    row_bytes = WIDTH * 4
    assert told.far_rows == heard.served_rows == 2
    assert told.sent_bytes == 2 * 32 + 2 * 4 + 1 * row_bytes + 2 * row_bytes
    assert told.received_bytes == 2 * 32 + 1 * 4 + 2 * row_bytes + 1 * row_bytes


def begin(rank: int, folder: Path) -> torch.Tensor:
    parts = sh.distributed.open(folder)
    return sh.distributed.LearnableTable(parts, "node", 3, seed=4)(torch.arange(ROWS)).detach()


def test_the_first_rows_do_not_depend_on_the_number_of_ranks(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 4)
    alone = begin(0, tmp_path)
    assert 0.8 < float(alone.std()) < 1.2
    for rows in run_ranks(begin, 4, tmp_path, tmp_path):
        assert rows.equal(alone)


def begin_wrongly(rank: int, folder: Path) -> None:
    def wrong(first: int, stop: int) -> torch.Tensor:
        return torch.zeros(stop - first + rank, 3)

    sh.distributed.LearnableTable(sh.distributed.open(folder), "node", 3, initial=wrong)


def test_wrong_first_rows_on_one_rank_are_told_to_all(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    one, other = run_failing_ranks(begin_wrongly, 2, tmp_path, tmp_path)
    assert (one.kind, other.kind) == ("PeerError", "RowArgumentError")
    parts = sh.distributed.open(tmp_path)
    with pytest.raises(RowArgumentError, match="floating-point"):
        sh.distributed.LearnableTable(parts, "node", 3, dtype=torch.int64)
    with pytest.raises(RowArgumentError, match="one of node"):
        sh.distributed.LearnableTable(parts, "author", 3)


def read_twice(rank: int, folder: Path) -> None:
    parts = sh.distributed.open(folder, timeout_seconds=2.0)
    table = sh.distributed.LearnableTable(parts, "node", 3)
    loss = table(torch.arange(4)).sum()
    if rank == 0:
        loss.backward()
    else:
        table(torch.arange(4))


def test_a_rank_without_a_backward_pass_is_told(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    for found in run_failing_ranks(read_twice, 2, tmp_path, tmp_path):
        assert found.kind == "RankDisagreementError"
        assert "rank 0 has gradients of `node.embeddings`, round 0" in found.text
        assert "rank 1 has rows of `node.embeddings`, round 1" in found.text
