"""Rows and sums of rows, gathered by the device: bits, ranges, gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import shorthaul as sh
from shorthaul.errors import LateRowIndexError, RowArgumentError, RowIndexError
from shorthaul.settings import settings
from shorthaul.tensors.cuda.gather import require_ids_in_range
from tests.gpu.suites import CLOSE, body


@body
def rows_are_moved_bit_by_bit(device: torch.device) -> None:
    ids = torch.tensor([99, 0, -1, 7, 7])
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8):
        for width in (1, 100):
            plain = torch.randint(100, (100, width)).to(dtype)
            wanted = plain[ids].view(torch.uint8)
            for table in (sh.unified(plain), sh.unified(plain.clone())[:]):
                for given in (ids, ids.to(device), ids.int().to(device)):
                    got = table.gather(given, device=device)
                    assert got.device == device
                    assert torch.equal(got.cpu().view(torch.uint8), wanted)


@body
def ids_out_of_range_are_named(device: torch.device) -> None:
    table = sh.unified(torch.randn(10, 8))
    for wrong in (10, -11):
        given = torch.tensor([1, wrong])
        with pytest.raises(RowIndexError, match=str(wrong)):
            table.gather(given, device=device)
        with (
            settings.override(device_checks="at_once"),
            pytest.raises(RowIndexError, match=str(wrong)),
        ):
            table.gather(given.to(device), device=device)


@body
def wrong_ids_on_a_device_are_told_later(device: torch.device) -> None:
    table = sh.unified(torch.randn(10, 8))
    right, wrong = (torch.tensor(each, device=device) for each in ([1, 2], [1, 10]))
    for part in (table, table[2:]):
        got = part.gather(wrong, device=device)
        assert torch.equal(got[1].cpu(), torch.zeros(8))
        torch.cuda.synchronize(device)
        with pytest.raises(LateRowIndexError, match="position 1 "):
            table.gather(right, device=device)
        table.gather(right, device=device)  # told once
        part.gather(wrong, device=device)
        with pytest.raises(LateRowIndexError, match="position 1 "):
            require_ids_in_range()
        require_ids_in_range()
    for pointers in ([0, 3], [1, 2], [0, 2, 1, 2]):
        table.gather_reduce(torch.tensor(pointers, device=device), right, "sum")
        with pytest.raises(RowArgumentError, match="ascending from 0"):
            require_ids_in_range()
    table.gather_reduce(torch.tensor([0, 1, 2], device=device), right, "sum")
    require_ids_in_range()


@body
def segments_are_reduced_as_on_the_cpu(device: torch.device) -> None:
    pointers, ids = torch.tensor([0, 3, 3, 5]), torch.tensor([9, 0, 9, 4, 5])
    weights = torch.rand(5)
    for width in (1, 24, 128):
        table = sh.unified(torch.randn(10, width))
        for op in ("sum", "mean", "max"):
            for given in (None, weights):
                expected = table.gather_reduce(pointers, ids, op, given, device="cpu")
                moved = None if given is None else given.to(device)
                got = table.gather_reduce(pointers.to(device), ids.to(device), op, moved)
                torch.testing.assert_close(got.cpu(), expected, **CLOSE)


@body
def gradients_of_gathers_come_back_to_the_host(device: torch.device) -> None:
    plain, ids = torch.randn(20, 8), torch.tensor([3, 1, 3])
    for is_sparse in (False, True):
        near = plain.clone().requires_grad_()
        F.embedding(ids, near).square().sum().backward()
        far = sh.unified(plain.clone(), sparse_grad=is_sparse).requires_grad_()
        far[ids.to(device)].square().sum().backward()
        gradient = far.grad.to_dense() if is_sparse else far.grad
        torch.testing.assert_close(gradient, near.grad)


@body
def rows_come_into_memory_that_is_given(device: torch.device) -> None:
    plain, ids = torch.randn(50, 24), torch.tensor([3, -1, 0])
    for table in (sh.unified(plain), sh.unified(plain[:, :17])):
        out = torch.empty(3, table.shape[1], device=device)
        assert table.gather(ids, out=out, device=device) is out
        assert torch.equal(out.cpu(), table.cpu()[ids])


@body
def no_rows_are_no_launch(device: torch.device) -> None:
    table = sh.unified(torch.randn(5, 8))
    nothing = torch.tensor([], dtype=torch.int64, device=device)
    assert table.gather(nothing).shape == (0, 8)
    sums = table.gather_reduce(torch.tensor([0, 0, 0], device=device), nothing)
    assert torch.equal(sums.cpu(), torch.zeros(2, 8))
