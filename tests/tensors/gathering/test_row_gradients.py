"""Gradients of sums over rows agree with autograd on plain tensors."""

from __future__ import annotations

import pytest
import torch

from shorthaul.settings import settings
from shorthaul.tensors.gathering.row_gradients import reduce_gradient_rows, reduce_gradient_weights
from shorthaul.tensors.kernels.stored_rows import StoredRows
from tests.contracts.row_table_contract import values_of


@pytest.mark.parametrize("kernels", ["generated", "torch"])
@pytest.mark.parametrize("is_mean", [False, True])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("width", [3, 40])
def test_the_same_as_autograd(kernels, is_mean, is_weighted, width):
    table = values_of(20, width, dtype=torch.float64).requires_grad_()
    ids = torch.randint(20, (50,), generator=torch.Generator().manual_seed(4))
    pointers = torch.tensor([0, 7, 7, 30, 50])
    weights = torch.rand(50, dtype=torch.float64, requires_grad=True)
    counts = pointers.diff()
    segments = torch.repeat_interleave(torch.arange(4), counts)
    rows = table[ids] * weights[:, None] if is_weighted else table[ids]
    reduced = torch.zeros(4, width, dtype=torch.float64).index_add(0, segments, rows)
    if is_mean:
        reduced = reduced / counts.clamp(min=1)[:, None]
    gradient = values_of(4, width, dtype=torch.float64, seed=8)
    reduced.backward(gradient)

    with settings.override(kernels=kernels):
        unique, got = reduce_gradient_rows(
            gradient, pointers, ids, is_mean=is_mean, weights=weights if is_weighted else None
        )
        of_weights = reduce_gradient_weights(
            StoredRows(table.detach(), torch.float64), gradient, pointers, ids, is_mean=is_mean
        )
    assert unique.tolist() == sorted(set(ids.tolist()))
    torch.testing.assert_close(torch.zeros_like(table).index_copy(0, unique, got), table.grad)
    if is_weighted:
        torch.testing.assert_close(of_weights, weights.grad)
