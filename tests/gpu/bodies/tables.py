"""Tables in host memory that devices read: parts, writes, optimizers."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import shorthaul as sh
from tests.gpu.suites import body


@body
def parts_of_rows_and_of_tables_are_read_where_they_lie(device: torch.device) -> None:
    plain = torch.randn(100, 40)
    table, ids = sh.unified(plain), torch.tensor([3, 0, 19], device=device)
    for part, wanted in (
        (table[20:], plain[20:]),
        (table[::2], plain[::2]),
        (table[:, 4:20], plain[:, 4:20]),
        (table.view(100, 5, 8), plain.view(100, 5, 8)),
    ):
        assert torch.equal(part.gather(ids).cpu(), wanted[ids.cpu()])
    torch.testing.assert_close((table * 2).cpu(), plain * 2)


@body
def writes_wait_for_reads(device: torch.device) -> None:
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    count, rounds = (8, 2) if is_interpreted else (100_000, 50)
    table, ids = sh.unified(torch.zeros(count, 128)), torch.arange(count)
    for number in range(rounds):
        rows = table.gather(ids, device=device)
        table.scatter_(ids, torch.full((count, 128), number + 1.0))
        assert bool((rows == number).all()), f"round {number}: rows of another round were read"


@body
def unified_parameters_are_trained_where_they_lie(device: torch.device) -> None:
    plain, ids = torch.randn(20, 8), torch.tensor([3, 1, 3])
    near, far = nn.Embedding(20, 8, _weight=plain.clone()), nn.Module()
    far.table = nn.Parameter(sh.unified(plain.clone()))
    far.to(device)
    optimizers = torch.optim.Adam(near.parameters()), torch.optim.Adam(far.parameters())
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        near(ids).square().sum().backward()
        far.table[ids.to(device)].square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(far.table.detach().cpu(), near.weight.detach())


@body
def operators_read_a_table_as_they_read_a_tensor(device: torch.device) -> None:
    plain, ids = torch.randn(40, 8), torch.tensor([3, 39, 0])
    table, moved = sh.unified(plain), ids.to(device)
    weight = torch.randn(8, 4)
    for got, expected in (
        (table.index_select(0, moved), plain[ids]),
        (table[moved, 2:5], plain[ids, 2:5]),
        (F.embedding(moved, table), plain[ids]),
        (table + 1, plain + 1),
        (table @ weight.to(device), plain @ weight),
        (table.sum(0), plain.sum(0)),
    ):
        assert got.device == device or got.device.type == "cuda"
        torch.testing.assert_close(got.cpu(), expected)


@body
def rows_on_disk_come_to_the_device(device: torch.device) -> None:
    plain, ids = torch.randn(40, 8), torch.tensor([3, 39, 0, 3])
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.npy"
        sh.save_features(path, plain)
        table = sh.open(path)
        for given in (ids, ids.to(device)):
            got = table.gather(given, device=device)
            assert got.device == device
            assert torch.equal(got.cpu(), plain[ids])


@body
def a_default_device_changes_nothing(device: torch.device) -> None:
    plain, ids = torch.randn(40, 8), [3, 0]
    torch.set_default_device(device)
    try:
        table = sh.unified(plain)
        found = (
            table[ids],
            table[torch.tensor(ids)],
            table.gather(torch.tensor(ids), device="cpu"),
        )
        zeros = sh.unified_zeros(4, 2)
    finally:
        torch.set_default_device(None)
    for got in found:
        assert torch.equal(got.cpu(), plain[ids])
    assert found[-1].device.type == "cpu"
    assert torch.equal(zeros.gather(torch.tensor([1]), device="cpu"), torch.zeros(1, 2))
