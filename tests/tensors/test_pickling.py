"""Unified tensors survive pickles and checkpoints as what they were."""

import io
import multiprocessing
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.tensors import UnifiedTensor

ROWS = torch.arange(12.0).view(4, 3)


def through_pickle(value):
    return pickle.loads(pickle.dumps(value))


def through_torch_save(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("way", [through_pickle, through_torch_save])
@pytest.mark.parametrize("shared", [False, True])
def test_values_and_traits_come_back(way, shared: bool) -> None:
    u = sh.unified(ROWS, shared=shared, propagate=True, sparse_grad=True)[1:, ::2]
    back = way(u)
    assert type(back) is UnifiedTensor
    assert torch.equal(back, u)
    assert (back.kind, back.propagate, back.sparse_grad) == (u.kind, True, True)
    back.zero_()
    assert torch.equal(u, ROWS[1:, ::2])


@pytest.mark.parametrize("way", [through_pickle, through_torch_save])
def test_parameters_come_back_as_parameters(way) -> None:
    back = way(nn.Parameter(sh.unified(ROWS)))
    assert isinstance(back, nn.Parameter)
    assert back.requires_grad


def test_a_file_comes_back_by_its_path(tmp_path: Path) -> None:
    u = sh.open(sh.save_features(tmp_path / "x.npy", ROWS).path)
    text = pickle.dumps(u[1:])
    assert len(text) < 4096
    back = pickle.loads(text)
    assert (back.kind, back.shape) == ("disk", (3, 3))
    assert torch.equal(back[torch.tensor([-1, 0])], ROWS[[3, 1]])


def read_rows(tables, answers) -> None:
    torch.set_num_threads(1)  # as loader workers do: OpenMP's threads do not survive a fork
    answers.put([table[torch.tensor([2, 0])].tolist() for table in tables])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_open_files_and_memory_are_read_in_child_and_parent(tmp_path: Path, method: str) -> None:
    on_disk = sh.open(sh.save_features(tmp_path / "x.npy", ROWS).path, cache="sieve")
    assert torch.equal(on_disk[torch.tensor([1])], ROWS[1:2])  # the engine runs
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    tables = (on_disk, on_disk[:3], sh.unified(ROWS))
    child = context.Process(target=read_rows, args=(tables, answers), daemon=True)
    child.start()
    assert answers.get(timeout=100) == [ROWS[[2, 0]].tolist()] * 3
    child.join(100)
    assert child.exitcode == 0
    assert torch.equal(on_disk[torch.tensor([3])], ROWS[3:])
