"""What every table of rows must do; each kind's tests subclass this."""

from __future__ import annotations

import itertools
import os
import signal
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import shorthaul as sh
from shorthaul.errors import RowArgumentError, RowIndexError
from shorthaul.tensors.kernels import plain_rows
from shorthaul.tensors.kernels.stored_rows import StoredRows
from shorthaul.tensors.tables.table import RowTable

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int64,
    torch.bool,
    torch.complex64,
)

SHAPES = ((), (1,), (7,), (3, 5), (64,), (0,))
FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# What is tested each time of all combinations: every value of every axis, and whole products where
# one kernel differs from the next. The rest is `slow`: copies depend on a row's bytes, not its dtype.
ROWS_EACH_TIME = (
    *((torch.float32, shape) for shape in SHAPES),
    (torch.float64, (64,)),
    (torch.float16, (1,)),
    (torch.bfloat16, (3, 5)),
    (torch.int8, (7,)),
    (torch.int8, ()),
    (torch.int64, ()),
    (torch.bool, (64,)),
    (torch.complex64, (1,)),
)
SUMS_EACH_TIME = (
    *itertools.product((torch.float32,), ("sum", "mean", "max"), (False, True)),
    (torch.float64, "mean", True),
    (torch.float16, "sum", False),
    (torch.bfloat16, "max", True),
    (torch.bfloat16, "mean", False),
)
PRODUCTS_EACH_TIME = (
    (torch.float32, 1, False),
    (torch.float32, 16, True),
    (torch.float32, 37, True),
    (torch.float64, 37, False),
    (torch.bfloat16, 16, False),
    (torch.bfloat16, 1, True),
)


def all_or(each_time: Sequence[Any], *axes: Sequence[Any]) -> list[Any]:
    """Every combination of the axes as a parameter; those not tested each time are slow."""
    return [
        pytest.param(
            *each,
            id="-".join(map(str, each)),
            marks=[] if each in each_time else [pytest.mark.slow],
        )
        for each in itertools.product(*axes)
    ]


def values_of(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Numbers that differ from row to row."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * 50).to(dtype)


def ids_of(count: int, rows: int, seed: int = 1) -> torch.Tensor:
    """Ids of both signs, some of them equal."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-rows, rows, (count,), generator=generator)


class RowTableContract:
    """Subclasses say how a table with given rows is made."""

    @abstractmethod
    def make(self, values: torch.Tensor, directory: Path) -> RowTable:
        """A table with these rows."""

    @pytest.mark.parametrize(("dtype", "row_shape"), all_or(ROWS_EACH_TIME, DTYPES, SHAPES))
    def test_rows_come_bit_for_bit(self, tmp_path, dtype, row_shape):
        values = values_of(40, *row_shape, dtype=dtype)
        table = self.make(values, tmp_path)
        ids = ids_of(100, 40)
        got = table.gather(ids)
        assert got.dtype is dtype
        assert torch.equal(got, values[ids])
        assert (table.shape, table.dtype) == (tuple(values.shape), dtype)

    def test_ids_of_either_width_and_any_stride(self, tmp_path):
        values = values_of(30, 8)
        table = self.make(values, tmp_path)
        ids = ids_of(50, 30)
        assert torch.equal(table.gather(ids.int()), values[ids])
        assert torch.equal(table.gather(ids[::3]), values[ids[::3]])

    def test_no_ids_no_rows(self, tmp_path):
        table = self.make(values_of(5, 3), tmp_path)
        nothing = torch.empty(0, dtype=torch.int64)
        assert table.gather(nothing).shape == (0, 3)
        assert table.gather_reduce(torch.tensor([0, 0]), nothing).tolist() == [[0, 0, 0]]
        assert table.gather_linear(nothing, torch.ones(2, 3)).shape == (0, 2)

    @pytest.mark.parametrize("wrong", [6, -7, 2**40, -(2**40)])
    def test_an_id_out_of_range_is_named(self, tmp_path, wrong):
        table = self.make(values_of(6, 4), tmp_path)
        ids = torch.tensor([0, 5, wrong, 99])
        out = torch.full((4, 4), 7.0)
        for ask in (
            lambda: table.gather(ids, out),
            lambda: table.gather_reduce(torch.tensor([0, 4]), ids),
            lambda: table.gather_linear(ids, torch.ones(4, 4), out=out),
            lambda: table.prefetch(ids),
        ):
            with pytest.raises(RowIndexError, match=f"row id {wrong} at position 2") as caught:
                ask()
            assert isinstance(caught.value, IndexError)
        assert (out == 7).all()  # nothing was written

    def test_a_table_without_rows_has_no_id(self, tmp_path):
        table = self.make(values_of(0, 4), tmp_path)
        with pytest.raises(RowIndexError, match="the table has no rows"):
            table.gather(torch.tensor([0]))

    @pytest.mark.parametrize(
        "ids", [torch.tensor([0.0]), torch.tensor([[0]]), torch.tensor(0), torch.tensor([True])]
    )
    def test_what_is_no_list_of_ids_is_refused(self, tmp_path, ids):
        with pytest.raises(RowArgumentError, match="ids must be a CPU tensor"):
            self.make(values_of(3, 2), tmp_path).gather(ids)

    def test_rows_are_put_where_they_are_wanted(self, tmp_path):
        values, ids = values_of(20, 6), ids_of(9, 20)
        table = self.make(values, tmp_path)
        out = torch.empty(9, 6)
        assert table.gather(ids, out) is out
        assert torch.equal(out, values[ids])
        for wrong in (
            torch.empty(8, 6),
            torch.empty(9, 6, dtype=torch.float64),
            torch.empty(6, 9).t(),
        ):
            with pytest.raises(RowArgumentError, match="out must be"):
                table.gather(ids, wrong)

    def test_what_was_handed_out_stays(self, tmp_path):
        values = values_of(4000, 256)
        table = self.make(values, tmp_path)
        one = table.gather(torch.arange(4000))  # large enough to come from a pool
        other = table.gather(torch.arange(4000).flip(0))
        assert torch.equal(one, values)
        assert torch.equal(other, values.flip(0))

    @pytest.mark.parametrize(
        ("dtype", "op", "is_weighted"),
        all_or(SUMS_EACH_TIME, FLOATING, ("sum", "mean", "max"), (False, True)),
    )
    def test_segments_are_reduced(self, tmp_path, dtype, op, is_weighted):
        values = values_of(50, 37, dtype=dtype)
        ids = ids_of(120, 50)
        pointers = torch.tensor([0, 0, 1, 40, 40, 117, 120, 120])
        weights = torch.rand(120) if is_weighted else None
        got = self.make(values, tmp_path).gather_reduce(pointers, ids, op, weights)
        whole = torch.where(ids < 0, ids + 50, ids)
        expected = plain_rows.gather_reduce(StoredRows(values, dtype), pointers, whole, op, weights)
        # Sums of up to 77 rows, added in another order: in float32 for the half precisions.
        rtol = {
            torch.float64: 1e-12,
            torch.float32: 1e-5,
            torch.float16: 2e-3,
            torch.bfloat16: 2e-2,
        }
        torch.testing.assert_close(got, expected, rtol=rtol[dtype], atol=rtol[dtype] * 50)
        assert (got[[0, 3, 6]] == 0).all()  # empty segments

    def test_a_nan_is_the_maximum(self, tmp_path):
        values = torch.tensor([[1.0, float("nan")], [2.0, -1.0], [-float("inf"), 0.0]])
        table = self.make(values, tmp_path)
        got = table.gather_reduce(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 2]), "max")
        expected = torch.tensor([[2.0, float("nan")], [-float("inf"), 0.0]])
        torch.testing.assert_close(got, expected, equal_nan=True)

    def test_reductions_do_not_depend_on_threads(self, tmp_path):
        table = self.make(values_of(500, 65), tmp_path)
        ids, pointers = ids_of(9000, 500), torch.arange(0, 9001, 9)
        before = torch.get_num_threads()
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(table.gather_reduce(pointers, ids, "mean"))
        torch.set_num_threads(before)
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])

    @pytest.mark.parametrize(
        ("pointers", "op", "weights", "message"),
        [
            ([0, 1], "min", None, "op must be one of sum, mean, max"),
            ([0, 2], "sum", None, "pointers must be ascending"),
            ([1, 1], "sum", None, "pointers must be ascending"),
            ([0, 3, 1], "sum", None, "pointers must be ascending"),
            ([], "sum", None, "pointers must be ascending"),
            ([0, 1], "sum", torch.ones(2), "weights must be 1 floating-point"),
        ],
    )
    def test_a_wrong_reduction_is_refused(self, tmp_path, pointers, op, weights, message):
        table = self.make(values_of(3, 2), tmp_path)
        segments = torch.tensor(pointers, dtype=torch.int64)
        with pytest.raises(RowArgumentError, match=message):
            table.gather_reduce(segments, torch.tensor([1]), op, weights)

    @pytest.mark.parametrize(
        ("dtype", "outputs", "has_bias"),
        all_or(
            PRODUCTS_EACH_TIME,
            (torch.float32, torch.float64, torch.bfloat16),
            (1, 16, 37),
            (False, True),
        ),
    )
    def test_rows_times_a_matrix(self, tmp_path, dtype, outputs, has_bias):
        values = values_of(300, 33, dtype=dtype) / 50
        ids = ids_of(700, 300)
        weight = values_of(outputs, 33, seed=5).to(dtype) / 50
        bias = torch.arange(outputs, dtype=dtype) if has_bias else None
        got = self.make(values, tmp_path).gather_linear(ids, weight, bias)
        exact = torch.nn.functional.linear(
            values[ids].double(), weight.double(), None if bias is None else bias.double()
        )
        rtol = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
        torch.testing.assert_close(got, exact.to(dtype), rtol=rtol, atol=rtol)

    def test_a_matrix_that_does_not_fit_is_refused(self, tmp_path):
        with pytest.raises(RowArgumentError, match="weight must be of shape"):
            self.make(values_of(3, 2), tmp_path).gather_linear(torch.tensor([0]), torch.ones(2, 3))

    def test_runs_of_rows_are_read(self, tmp_path):
        values = values_of(60, 5)
        table = self.make(values, tmp_path)
        assert torch.equal(table.read(10, 50), values[10:50])
        assert torch.equal(table.read(7, 7), values[7:7])

    def test_a_ticket_hands_out_the_rows_again_and_again(self, tmp_path):
        values, ids = values_of(60, 5), ids_of(20, 60)
        table = self.make(values, tmp_path)
        tickets = [table.prefetch(ids), table.prefetch(ids.flip(0))]
        assert torch.equal(tickets[1].wait(), values[ids.flip(0)])
        assert torch.equal(tickets[0].wait(), values[ids])
        assert tickets[0].done
        assert tickets[0].wait() is tickets[0].wait()

    def test_what_was_asked_is_counted(self, tmp_path):
        table = self.make(values_of(10, 4), tmp_path)
        table.gather(torch.tensor([1, 1, 2]))
        stats = table.stats()
        assert (stats.rows_asked, stats.moved_bytes) == (3, 3 * 16)
        assert table.stored_row_bytes == 16
        with sh.meter() as meter:
            table.gather(torch.tensor([1]))
        assert meter.moved_bytes >= 16

    def test_a_forked_child_gathers_too(self, tmp_path):
        values = values_of(100, 16)
        table = self.make(values, tmp_path)
        table.gather(torch.arange(5))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, about threads
            child = os.fork()
        if child == 0:
            signal.alarm(60)
            torch.set_num_threads(1)  # as in a data loader's worker: PyTorch's pool is not forked
            is_right = torch.equal(table.gather(torch.arange(100)), values)
            os._exit(0 if is_right else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(table.gather(torch.arange(100)), values)
