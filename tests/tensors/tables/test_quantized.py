"""Quantized rows are what their report says, and kernels see what the user sees."""

from __future__ import annotations

import pytest
import torch

from shorthaul.errors import RowArgumentError
from shorthaul.settings import settings
from shorthaul.tensors.tables.quantized import quantize, quantize_rows
from shorthaul.tensors.tables.table import HostTable
from tests.contracts.row_table_contract import ids_of, values_of

KINDS = ("float16", "bfloat16", "int8")


@pytest.mark.parametrize("kernels", ["generated", "torch"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row_shape", [(5,), (4, 8)], ids=str)
def test_kernels_widen_as_the_reference_does(kernels, kind, row_shape):
    values = values_of(90, *row_shape)
    seen = quantize_rows(values, kind).widened()
    ids, pointers = ids_of(70, 90), torch.tensor([0, 30, 30, 70])
    with settings.override(kernels=kernels):
        table = quantize(values, kind)
        assert table.dtype is torch.float32
        assert torch.equal(table.gather(ids), seen[ids])
        for op in ("sum", "mean", "max"):
            got = table.gather_reduce(pointers, ids, op)
            expected = HostTable(seen).gather_reduce(pointers, ids, op)
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-3)
        if len(row_shape) == 1:
            weight = values_of(3, 5, seed=2)
            got = table.gather_linear(ids, weight)
            torch.testing.assert_close(got, seen[ids] @ weight.t(), rtol=1e-5, atol=1e-2)
        assert torch.equal(table.read(3, 9), seen[3:9])
        assert table.tensor() is None
        with pytest.raises(RowArgumentError, match="not quantized"):
            table.scatter_(torch.tensor([0]), values[:1])


@pytest.mark.parametrize(("kind", "row_bytes"), [("float16", 64), ("bfloat16", 64), ("int8", 36)])
def test_the_report_is_exact(kind, row_bytes):
    values = values_of(50, 32)
    table = quantize(HostTable(values), kind)
    errors = (table.gather(torch.arange(50)) - values).abs()
    assert table.report.before_bytes == values.nbytes
    assert table.report.after_bytes == 50 * row_bytes
    assert table.stored_row_bytes == row_bytes
    assert table.report.largest_error == float(errors.max()) > 0
    assert table.report.mean_error == pytest.approx(float(errors.mean()), rel=1e-5)


def test_a_step_of_int8_is_half_a_scale_at_most():
    values = values_of(300, 16)
    packed = quantize_rows(values, "int8")
    errors = (packed.widened() - values).abs().amax(1)
    assert (errors <= packed.scales * 0.5001).all()
    assert (packed.values.abs().amax(1) == 127).all()  # the largest value uses the whole range


def test_a_row_of_zeros_stays_zeros():
    table = quantize(torch.zeros(3, 4), "int8")
    assert (table.gather(torch.arange(3)) == 0).all()


def test_empty_and_narrow_tables():
    for shape in ((0, 4), (4, 0)):
        table = quantize(torch.zeros(shape), "int8")
        assert table.gather(torch.arange(shape[0])).shape == shape
        assert quantize_rows(torch.zeros(shape), "float16").values.shape == shape
        assert quantize_rows(torch.zeros(shape), "int8").scales.shape == shape[:1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_cannot_be_stored_is_named(kind, wrong):
    values = torch.ones(10, 3)
    values[7, 1] = wrong
    with pytest.raises(RowArgumentError, match="row 7 must be finite numbers"):
        quantize(values, kind)


def test_too_large_for_float16():
    with pytest.raises(
        RowArgumentError, match="row 0 must be finite numbers that float16 can hold"
    ):
        quantize(torch.full((1, 1), 1e6), "float16")


def test_only_kinds_that_exist_and_numbers_with_fractions():
    with pytest.raises(RowArgumentError, match="one of float16, bfloat16, int8"):
        quantize(torch.ones(1, 1), "int4")
    with pytest.raises(RowArgumentError, match="floating-point"):
        quantize(torch.ones(1, 1, dtype=torch.int64), "int8")


SEEN = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        # float64 each time: sums in 64 bits widen what is stored by other instructions.
        pytest.param(
            kind,
            seen,
            marks=[] if seen is torch.float64 else [pytest.mark.slow],
            id=f"{kind}-{seen}",
        )
        for kind in KINDS
        for seen in SEEN
        if str(seen) != f"torch.{kind}"
    ],
)
def test_rows_are_widened_to_whatever_the_user_sees(kind, seen):
    packed = quantize_rows(values_of(90, 37, dtype=torch.float64) / 3, kind)
    table = HostTable(packed.values, scales=packed.scales, dtype=seen)
    ids, pointers = ids_of(70, 90), torch.tensor([0, 30, 30, 70])
    exact = packed.values.double()
    if packed.scales is not None:
        exact = exact * packed.scales.double()[:, None]
    exact = exact[ids]

    def require_close(got: torch.Tensor, expected: torch.Tensor, terms: int) -> None:
        bound = terms * float(exact.abs().max()) * torch.finfo(seen).eps
        assert got.dtype is seen
        assert float((got.double() - expected).abs().max()) <= bound

    require_close(table.gather(ids), exact, 1)
    weights = values_of(70, dtype=torch.float64, seed=3).abs() / 50
    parts = (exact * weights[:, None]).split([30, 0, 40])
    for op, reduce in (("sum", torch.sum), ("mean", torch.mean), ("max", torch.amax)):
        rows = [reduce(each, 0) if len(each) else each.sum(0) for each in parts]
        require_close(table.gather_reduce(pointers, ids, op, weights), torch.stack(rows), 40 * 4)
    weight = (values_of(3, 37, seed=2) / 50).to(seen)
    require_close(table.gather_linear(ids, weight), exact @ weight.double().t(), 37 * 4)
