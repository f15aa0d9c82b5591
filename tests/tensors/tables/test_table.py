"""Tables in memory keep the contract, with kernels and without, and share what they were given."""

from __future__ import annotations

import gc

import pytest
import torch

from shorthaul.errors import RowArgumentError, RowIndexError
from shorthaul.settings import settings
from shorthaul.tensors.tables.table import HostTable, TableStats
from tests.contracts.row_table_contract import RowTableContract, ids_of, values_of


class TestHostTable(RowTableContract):
    def make(self, values, directory):
        return HostTable(values)


class TestStridedTable(RowTableContract):
    """Every other row of a wider tensor, and not all of its columns."""

    def make(self, values, directory):
        if values.dim() == 1:
            around = torch.zeros(3 * len(values) + 1, dtype=values.dtype)
            view = around[1::3]
        else:
            wide = (len(values) * 2 + 1, *values.shape[1:-1], values.shape[-1])
            around = torch.zeros(wide, dtype=values.dtype)
            view = around[1::2]
        view.copy_(values)
        return HostTable(view)


class TestTransposedTable(RowTableContract):
    """The values of a row do not lie side by side: no kernel applies."""

    def make(self, values, directory):
        if values.dim() < 2:
            return HostTable(values)
        return HostTable(values.transpose(0, -1).contiguous().transpose(0, -1))


class TestWithoutCompiler(RowTableContract):
    @pytest.fixture(autouse=True)
    def _plain(self):
        with settings.override(kernels="torch"):
            yield

    def make(self, values, directory):
        return HostTable(values)


@pytest.mark.parametrize("kernels", ["generated", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bfloat16], ids=str)
def test_of_repeated_ids_the_last_row_is_written(kernels, dtype):
    values, new = values_of(9, 5, dtype=dtype), values_of(4, 5, dtype=dtype, seed=3)
    expected = values.clone()
    for each, row in zip([2, 8, 2, 8], new, strict=True):
        expected[each] = row
    with settings.override(kernels=kernels):
        HostTable(values).scatter_(torch.tensor([2, -1, 2, 8]), new)
    assert torch.equal(values, expected)


def test_many_rows_are_written_by_several_threads():
    values, ids = torch.zeros(300, 400), ids_of(5000, 300)
    new = torch.arange(5000.0)[:, None].expand(5000, 400)
    HostTable(values).scatter_(ids, new)
    last = {int(each) % 300: position for position, each in enumerate(ids)}
    expected = torch.tensor([float(last.get(row, 0)) for row in range(300)])
    assert torch.equal(values, expected[:, None].expand(300, 400))


def test_a_wrong_id_writes_nothing():
    values = torch.zeros(3, 2)
    with pytest.raises(RowIndexError, match="row id 3 at position 1"):
        HostTable(values).scatter_(torch.tensor([0, 3]), torch.ones(2, 2))
    assert (values == 0).all()


def test_rows_of_another_shape_are_not_written():
    with pytest.raises(RowArgumentError, match="rows that are written"):
        HostTable(torch.zeros(3, 2)).scatter_(torch.tensor([0]), torch.ones(2, 2))


def test_the_table_shares_and_keeps_what_it_was_given():
    values = values_of(4, 3)
    expected = values.clone()
    table = HostTable(values)
    assert table.tensor().data_ptr() == values.data_ptr()
    assert table.read(1, 3).data_ptr() == values[1].data_ptr()
    del values
    gc.collect()
    assert torch.equal(table.gather(torch.arange(4)), expected)


@pytest.mark.parametrize("wrong", [torch.tensor(1.0), torch.zeros(2, 2).to_sparse()])
def test_what_has_no_rows_is_refused(wrong):
    with pytest.raises(RowArgumentError, match="a table in memory must be"):
        HostTable(wrong)


def test_whole_numbers_are_not_reduced():
    with pytest.raises(RowArgumentError, match="floating-point rows"):
        HostTable(torch.ones(2, 2, dtype=torch.int64)).gather_reduce(
            torch.tensor([0, 1]), torch.tensor([0])
        )


def test_the_hit_rate_is_a_share():
    assert TableStats().hit_rate == 0
    assert TableStats(hits=3, misses=1).hit_rate == 0.75


def test_rows_that_lie_in_the_table_are_written_as_they_were():
    values = torch.arange(12.0).view(6, 2)
    expected = values.clone()
    expected[torch.tensor([1, 2, 3, 4])] = values[:4].clone()
    HostTable(values).scatter_(torch.tensor([1, 2, 3, 4]), values[:4])
    assert torch.equal(values, expected)


def test_ids_that_lie_in_the_table_are_those_that_were_checked():
    values = torch.tensor([[1], [2], [0], [3]])
    ids = values[:3, 0]
    rows = torch.tensor([[3], [10**12], [10**12]])  # would be far outside, taken for ids
    HostTable(values).scatter_(ids, rows)
    assert values[:, 0].tolist() == [10**12, 3, 10**12, 3]
