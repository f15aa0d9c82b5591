"""The plain row operations against loops that can be read at a glance."""

from __future__ import annotations

import pytest
import torch

from shorthaul.tensors.kernels import plain_rows
from shorthaul.tensors.kernels.stored_rows import StoredRows

TABLE = torch.tensor([[1.0, 5.0], [-2.0, 3.0], [4.0, -6.0]])
IDS, POINTERS = torch.tensor([0, 2, 2, 1]), torch.tensor([0, 2, 2, 4])
WEIGHTS = torch.tensor([2.0, 1.0, -1.0, 0.5])


def reduce_by_hand(op: str, weights: list[float]) -> list[list[float]]:
    """Segment by segment, value by value."""
    combine = {"sum": sum, "max": max, "mean": lambda values: sum(values) / len(values)}[op]
    result = []
    for start, stop in zip(POINTERS.tolist(), POINTERS.tolist()[1:], strict=False):
        rows = [
            [weights[at] * value for value in TABLE[IDS[at]].tolist()] for at in range(start, stop)
        ]
        columns = list(zip(*rows, strict=True)) or [(0.0,), (0.0,)]
        result.append([combine(list(each)) for each in columns])
    return result


@pytest.mark.parametrize("op", plain_rows.REDUCTIONS)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_reductions(op, is_weighted):
    weights = WEIGHTS if is_weighted else None
    got = plain_rows.gather_reduce(StoredRows(TABLE, torch.float32), POINTERS, IDS, op, weights)
    assert got.tolist() == reduce_by_hand(op, WEIGHTS.tolist() if is_weighted else [1.0] * 4)


def test_products_with_gradients():
    gradient = torch.tensor([[1.0, 0.0], [9.0, 9.0], [0.0, 2.0]])
    rows = StoredRows(TABLE, torch.float32)
    got = plain_rows.multiply_rows(rows, POINTERS, IDS, gradient, is_mean=False)
    assert got.tolist() == [1.0, 4.0, -12.0, 6.0]
    halved = plain_rows.multiply_rows(rows, POINTERS, IDS, gradient, is_mean=True)
    assert halved.tolist() == [0.5, 2.0, -6.0, 3.0]


def test_int8_rows_are_scaled():
    rows = StoredRows(
        torch.tensor([[2], [3]], dtype=torch.int8), torch.float32, torch.tensor([0.5, 2.0])
    )
    assert plain_rows.gather(rows, torch.tensor([1, 0])).tolist() == [[6.0], [1.0]]


def test_linear_is_linear():
    rows = StoredRows(TABLE, torch.float32)
    got = plain_rows.gather_linear(
        rows, torch.tensor([2]), torch.tensor([[1.0, 1.0]]), torch.tensor([10.0])
    )
    assert got.tolist() == [[8.0]]


def test_the_last_of_repeated_rows_is_written():
    values = torch.zeros(3, 1)
    plain_rows.scatter(
        StoredRows(values, torch.float32), torch.tensor([1, 1]), torch.tensor([[5.0], [6.0]])
    )
    assert values.tolist() == [[0.0], [6.0], [0.0]]


def test_half_precision_is_summed_in_single():
    assert plain_rows.sum_dtype(torch.bfloat16) is torch.float32
    assert plain_rows.sum_dtype(torch.float64) is torch.float64
