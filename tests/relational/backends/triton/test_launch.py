"""Blocks that suit a matrix, and constants that a kernel is compiled for."""

import pytest
import torch

pytest.importorskip("triton")

from shorthaul.relational.backends.triton.launch import (
    ROWS_PER_TILE,
    SUM_ELEMENTS,
    Blocks,
    choose_outer_blocks,
    choose_product_blocks,
    outer_constants,
    product_constants,
    round_up,
)
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.step import Step


def test_wide_matrices_of_narrow_numbers_use_tensor_cores():
    assert choose_product_blocks(64, 100, torch.float32) == Blocks(ROWS_PER_TILE, 64, 32, True)
    assert choose_outer_blocks(17, 40, torch.bfloat16) == Blocks(32, 64, 32, True)


@pytest.mark.parametrize(
    ("depth", "width", "dtype"),
    [
        (64, 1, torch.float32),
        (3, 64, torch.float16),
        (64, 64, torch.float64),
        (0, 0, torch.float32),
    ],
)
def test_narrow_and_double_ones_are_summed_in_blocks_that_registers_hold(depth, width, dtype):
    for chosen in (
        choose_product_blocks(depth, width, dtype),
        choose_outer_blocks(depth, width, dtype),
    ):
        assert not chosen.uses_dot
        assert 1 <= chosen.rows * chosen.columns * chosen.block <= 4 * SUM_ELEMENTS
        for size in (chosen.rows, chosen.columns, chosen.block):
            assert size == round_up(size)


def test_sizes_are_constants_of_the_kernel():
    x = Step("x", "input", (), (2, 5), Space.NODE)
    w = Step("w", "input", (), (2, 7, 5), Space.NODE_TYPE)
    y = Step("y", "linear", ("x", "w"), (2, 7), Space.NODE, (("transposed", True), ("way", "type")))
    found = product_constants(y, x, w, torch.float32)
    assert (found["HEADS"], found["INNER"], found["DEPTH"], found["WIDTH"]) == (2, 1, 5, 7)
    assert found["TURNED"]
    d = Step(
        "d", "outer", ("x", "y"), (2, 5, 7), Space.NODE_TYPE, (("heads", True), ("way", "type"))
    )
    found = outer_constants(d, x, y, torch.float32)
    assert (found["HEADS"], found["INNER"], found["DEPTH"], found["WIDTH"]) == (2, 1, 5, 7)


def test_sizes_are_rounded_up_to_powers_of_two():
    assert [round_up(size) for size in (0, 1, 2, 3, 64, 65)] == [1, 1, 2, 4, 64, 128]
