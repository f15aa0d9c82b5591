"""The row kernels where tables do not show it: streams, tiles, placing, wrong dtypes."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shorthaul.errors import RowArgumentError, RowIndexError
from shorthaul.settings import settings
from shorthaul.tensors.kernels import host_kernels, plain_rows
from shorthaul.tensors.kernels.stored_rows import StoredRows
from tests.contracts.row_table_contract import ids_of, values_of


@hypothesis.settings(deadline=None)
@given(
    st.integers(1, 30),
    st.integers(1, 70),
    st.integers(0, 50),
    st.sampled_from(["sum", "mean", "max"]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_any_segments_are_reduced_as_in_plain_torch(rows, width, count, op, is_weighted, random):
    values = values_of(rows, width, dtype=torch.float64)
    ids = torch.tensor([random.randrange(rows) for _ in range(count)], dtype=torch.int64)
    inner = sorted(random.randrange(count + 1) for _ in range(random.randrange(6)))
    pointers = torch.tensor([0, *inner, count])
    weights = torch.rand(count, dtype=torch.float64) if is_weighted else None
    stored = StoredRows(values, torch.float64)
    got = host_kernels.gather_reduce(stored, pointers, ids, op, weights)
    expected = plain_rows.gather_reduce(stored, pointers, ids, op, weights)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-9)


def test_large_results_go_past_the_caches():
    values = values_of(1000, 128)
    ids = ids_of(host_kernels.SMALLEST_STREAM_BYTES // 512 + 7, 1000)
    got = host_kernels.gather(StoredRows(values, torch.float32), ids)
    assert torch.equal(got, values[ids])
    out = torch.empty(got.numel() + 1)[1:].view(got.shape)  # not aligned: no stream can go there
    assert torch.equal(host_kernels.gather(StoredRows(values, torch.float32), ids, out), got)


@pytest.mark.parametrize(("row_bytes", "rows"), [(4, 16380), (512, 126), (2**17, 6), (0, 65532)])
def test_a_tile_is_whole_groups(row_bytes, rows):
    assert host_kernels.choose_tile_rows(row_bytes) == rows


@pytest.mark.parametrize("width", [1, 500, 20_000])
def test_products_of_long_and_short_rows(width):
    values, weight = values_of(40, width) / 50, values_of(19, width, seed=3) / 50
    ids = ids_of(200, 40)
    got = host_kernels.gather_linear(StoredRows(values, torch.float32), ids, weight)
    exact = (values[ids].double() @ weight.double().t()).float()
    torch.testing.assert_close(got, exact, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kernels", ["generated", "torch"])
def test_rows_are_placed(kernels):
    memory = torch.arange(100, dtype=torch.uint8)
    out = torch.zeros(4, 3, dtype=torch.uint8)
    with settings.override(kernels=kernels):
        host_kernels.place_rows(memory, torch.tensor([7, 50]), torch.tensor([3, 1]), out)
    assert out.tolist() == [[0, 0, 0], [50, 51, 52], [0, 0, 0], [7, 8, 9]]


def test_ids_that_are_checked_in_plain_torch():
    assert host_kernels.plain_ids(torch.tensor([-1, 0], dtype=torch.int32), 3).tolist() == [2, 0]
    with pytest.raises(RowIndexError, match="row id -4 at position 1"):
        host_kernels.plain_ids(torch.tensor([2, -4]), 3)


def test_whole_numbers_have_no_sums_and_no_products():
    rows = StoredRows(torch.ones(2, 2, dtype=torch.int64), torch.int64)
    with pytest.raises(RowArgumentError, match="a table that is reduced"):
        host_kernels.gather_reduce(rows, torch.tensor([0, 1]), torch.tensor([0]), "sum")
    with pytest.raises(RowArgumentError, match="a table that is multiplied"):
        host_kernels.gather_linear(rows, torch.tensor([0]), torch.ones(1, 2))
