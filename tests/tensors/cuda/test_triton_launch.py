"""The Triton gathers, interpreted, equal plain torch bit for bit; their plans are pure."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from hypothesis import given
from hypothesis import strategies as st

from shorthaul.errors import RowArgumentError, RowIndexError
from shorthaul.tensors.cuda.triton_launch import (
    LINE_BYTES,
    RangeFlag,
    choose_vectors,
    gather_rows,
)
from shorthaul.tensors.kernels.stored_rows import StoredRows
from tests.triton_programs import run_interpreted

INTERPRETED = "tests.tensors.interpreted_gather"
CPU = torch.device("cpu")
# Sums of up to 70 rows in another order; 16-bit results are rounded once more at the end.
TOLERANCES = {"torch.bfloat16": 1e-2, "torch.float16": 1e-3}


def _require_right(results: list[dict[str, Any]], count: int) -> None:
    assert len(results) == count
    for each in results:
        for name in ("gather", "bad_ids", "whole_way"):
            assert each[name], f"{each['drawn']}: {name}"
        assert each["reduce_error"] <= TOLERANCES.get(each["dtype"], 1e-5), each["drawn"]


def test_interpreted_kernels_equal_plain_torch() -> None:
    _require_right(run_interpreted(INTERPRETED, 10, seed=0), 10)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_interpreted_kernels_equal_plain_torch_over_many_tables() -> None:
    _require_right(run_interpreted(INTERPRETED, 600, seed=1), 600)


def test_the_comparison_fails_on_what_differs() -> None:
    right = {"drawn": "a table", "dtype": "torch.float32", "reduce_error": 0.0}
    right |= {"gather": True, "bad_ids": True, "whole_way": True}
    _require_right([right], 1)
    for wrong in ({"gather": False}, {"bad_ids": False}, {"reduce_error": 1e-3}):
        with pytest.raises(AssertionError, match="a table"):
            _require_right([right | wrong], 1)


@given(
    address=st.integers(1, 500),
    row_bytes=st.integers(1, 700),
    gap_bytes=st.integers(0, 200),
    out_address=st.integers(0, 100),
)
def test_vectors_divide_everything_and_lanes_keep_to_lines(
    address: int, row_bytes: int, gap_bytes: int, out_address: int
) -> None:
    stride_bytes = row_bytes + gap_bytes
    plan = choose_vectors(
        row_bytes=row_bytes,
        stride_bytes=stride_bytes,
        address=address,
        others=out_address,
        word=None,
    )
    size = plan.vector_bytes
    assert size <= 16
    assert all(each % size == 0 for each in (address, row_bytes, stride_bytes, out_address))
    assert plan.vectors * size == row_bytes
    if not plan.is_shifted:
        is_aligned = address % LINE_BYTES == 0 and stride_bytes % LINE_BYTES == 0
        assert row_bytes <= LINE_BYTES or is_aligned
        return
    for row in range(3):  # what the kernel does with it
        start = address + row * stride_bytes
        shift = (plan.base + row * plan.stride) % (LINE_BYTES // size) % plan.vectors
        columns = [(lane - shift) % plan.vectors for lane in range(plan.vectors)]
        assert sorted(columns) == list(range(plan.vectors)), "every vector is moved once"
        for lane in range(shift, plan.vectors):
            where = (start + columns[lane] * size) % LINE_BYTES
            assert where == lane * size % LINE_BYTES, "a lane keeps its place in a line"


@pytest.mark.parametrize(
    ("row_bytes", "stride_bytes", "word", "words", "is_shifted"),
    [
        (512, 512, torch.int64, 2, False),
        (400, 400, torch.int64, 2, True),
        (132, 132, torch.int32, 1, True),
        (100, 100, torch.int32, 1, False),
        (6, 6, torch.int16, 1, False),
        (3, 3, torch.int8, 1, False),
    ],
)
def test_vectors_of_usual_rows(
    row_bytes: int, stride_bytes: int, word: torch.dtype, words: int, is_shifted: bool
) -> None:
    plan = choose_vectors(
        row_bytes=row_bytes, stride_bytes=stride_bytes, address=4096, others=4096, word=None
    )
    assert (plan.word, plan.words, plan.is_shifted) == (word, words, is_shifted)


def test_values_that_are_widened_keep_their_word() -> None:
    plan = choose_vectors(row_bytes=64, stride_bytes=64, address=0, others=0, word=torch.float16)
    assert (plan.word, plan.words, plan.vectors) == (torch.float16, 8, 4)


def test_a_flag_names_the_first_bad_id() -> None:
    flag = RangeFlag(CPU)
    ids = torch.tensor([1, 9, 7])
    flag.require_clear(ids, 5)
    flag.position.fill_(1)
    with pytest.raises(RowIndexError, match="row id 9 at position 1"):
        flag.require_clear(ids, 5)


def test_out_must_fit() -> None:
    rows = StoredRows(torch.zeros(4, 3), torch.float32)
    for out in (torch.empty(2, 4), torch.empty(2, 3).double(), torch.empty(3, 2).t()):
        with pytest.raises(RowArgumentError, match=r"contiguous torch\.float32 of shape"):
            gather_rows(rows, torch.tensor([0, 1]), RangeFlag(CPU), out=out)
