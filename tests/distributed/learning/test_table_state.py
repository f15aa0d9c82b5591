"""Training goes on from a checkpoint, on as many ranks or others, as if it had never stopped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import shorthaul as sh
from shorthaul.errors import CheckpointError, RowArgumentError
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


EVERY: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, dampening=0.5),
    "SGD, plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "Adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, fused=True),
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adamax": torch.optim.Adamax,
    "Adadelta": torch.optim.Adadelta,
    "Adagrad": lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.5),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "ASGD": lambda p: torch.optim.ASGD(p, t0=0),
    "Rprop": torch.optim.Rprop,
    "SparseAdam": torch.optim.SparseAdam,
}


class Trained:
    """A table of one process that makes the same steps whenever it is told to."""

    def __init__(self, folder: Path, name: str) -> None:
        sparse = name == "SparseAdam"
        parts = sh.distributed.open(folder, checksums=False)
        self.table = sh.distributed.LearnableTable(parts, "node", 3, sparse=sparse)
        self.optimizer = EVERY[name](self.table.parameters())
        self.state = sh.distributed.TableState(self.table, self.optimizer)

    def step(self, count: int) -> torch.Tensor:
        for number in range(count):
            self.optimizer.zero_grad()
            ids = torch.arange(number, 60, 2)
            (self.table(ids) * (1 + ids[:, None] % 5)).square().sum().backward()
            self.optimizer.step()
        return self.table.weight.detach().clone()

    def saved(self) -> dict[str, Any]:
        return copy.deepcopy(self.state.state_dict())


@pytest.fixture(scope="module")
def parts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    cut_homogeneous(folder, 2)
    return folder


@pytest.mark.parametrize("name", EVERY)
def test_saving_before_the_first_step_changes_nothing(parts_folder: Path, name: str) -> None:
    expected = Trained(parts_folder, name).step(3)
    one = Trained(parts_folder, name)
    before = one.saved()
    assert one.step(3).equal(expected)
    other = Trained(parts_folder, name)
    other.step(2)
    other.state.load_state_dict(before)
    assert other.step(3).equal(expected)


@pytest.mark.parametrize("name", EVERY)
def test_what_every_optimizer_keeps_is_taken_over(parts_folder: Path, name: str) -> None:
    one, other = Trained(parts_folder, name), Trained(parts_folder, name)
    one.step(2)
    room, saved = other.state.state_dict(), one.saved()
    assert room.keys() == saved.keys()
    for key, value in saved.items():
        if isinstance(value, torch.Tensor):
            assert (room[key].shape, room[key].dtype) == (value.shape, value.dtype)
    other.state.load_state_dict(saved)
    assert other.step(2).equal(one.step(2))


def test_asking_for_a_state_makes_no_step(parts_folder: Path) -> None:
    one = Trained(parts_folder, "Adam")
    steps: list[object] = []
    one.optimizer.register_step_pre_hook(lambda *_: steps.append(1))
    one.state.state_dict()
    assert not steps
    assert not one.optimizer.state


def test_what_is_not_kept_by_rows_is_refused(parts_folder: Path) -> None:
    parts = sh.distributed.open(parts_folder)
    table = sh.distributed.LearnableTable(parts, "node", 3, sparse=False)
    optimizer = torch.optim.Adafactor(table.parameters())
    table(torch.arange(60)).sum().backward()
    optimizer.step()
    with pytest.raises(RowArgumentError, match=r"Adafactor, whose `row_var` has shape \(60, 1\)"):
        sh.distributed.TableState(table, optimizer).state_dict()
    sparse = sh.distributed.LearnableTable(parts, "node", 3)
    descent = torch.optim.SGD(sparse.parameters(), lr=0.1, momentum=0.5)
    with pytest.raises(RowArgumentError, match="SGD with momentum of sparse gradients"):
        sh.distributed.TableState(sparse, descent)
    sparse(torch.arange(60)).sum().backward()
    descent.step()
    descent.param_groups[0]["momentum"] = 0.0  # too late: the sparse tensor is there
    with pytest.raises(
        RowArgumentError, match=r"`momentum_buffer` has shape .*, torch\.sparse_coo"
    ):
        sh.distributed.TableState(sparse, descent).state_dict()


class Unheard(torch.optim.Adam):
    """An optimizer of somebody else's."""


def test_an_optimizer_that_is_not_known_makes_a_step_before_it_loads(parts_folder: Path) -> None:
    one, other = Trained(parts_folder, "Adam"), Trained(parts_folder, "Adam")
    for each in (one, other):
        each.optimizer = each.state.optimizer = Unheard(each.table.parameters())
    one.step(2)
    saved = one.saved()
    with pytest.raises(CheckpointError, match="Have the optimizer make a step, then load"):
        other.state.load_state_dict(saved)
    other.step(1)
    other.state.load_state_dict(saved)
    assert other.step(2).equal(one.step(2))


def test_rows_of_other_parts_are_refused(parts_folder: Path, tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2, method="range")
    saved = Trained(parts_folder, "Adam").saved()
    with pytest.raises(CheckpointError, match="the numbering of these parts"):
        Trained(tmp_path, "Adam").state.load_state_dict(saved)
