"""Blocks that suit a matrix, and constants that a kernel is compiled for."""

import pytest
import torch

pytest.importorskip("triton")

from shorthaul.relational.backends.triton import launch as triton_launch
from shorthaul.relational.backends.triton.launch import (
    ROWS_PER_TILE,
    SUM_ELEMENTS,
    Blocks,
    choose_outer_blocks,
    choose_product_blocks,
    launch_outer,
    launch_product,
    outer_constants,
    product_constants,
    round_up,
)
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.step import Step
from shorthaul.relational.topology.topology import Tiles


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


class _Recorder:
    """A kernel that is not run: what it would be compiled for is noted."""

    def __init__(self) -> None:
        self.options = []

    def __getitem__(self, grid):
        return lambda *_, **options: self.options.append(options)


@pytest.mark.parametrize(("asked", "expected"), [("highest", "ieee"), ("high", "tf32")])
def test_products_are_as_exact_as_pytorch_was_told(asked, expected, monkeypatch):
    product, outer, tiles_summed = _Recorder(), _Recorder(), _Recorder()
    monkeypatch.setattr(triton_launch, "product_kernel", product)
    monkeypatch.setattr(triton_launch, "outer_kernel", outer)
    monkeypatch.setattr(triton_launch, "sum_tiles_kernel", tiles_summed)
    lists = torch.empty(3, dtype=torch.int64, device="meta")
    tiles = Tiles(lists, lists[:2], lists[:2])
    blocks = {"HEADS": 1, "INNER": 1, "DEPTH": 64, "WIDTH": 64, "ROWS": 64, "COLUMNS": 64}
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(asked)
    try:
        for dtype in (torch.float32, torch.bfloat16):
            x, w = (torch.empty(n, 64, dtype=dtype, device="meta") for n in (10, 128))
            launch_product(blocks, tiles, None, None, x, w, x)
            out = torch.empty(2, 64, 64, dtype=dtype, device="meta")
            launch_outer(blocks, tiles, None, (None, None), x, x, out)
    finally:
        torch.set_float32_matmul_precision(before)
    for kernel in (product, outer):
        assert [each["PRECISION"] for each in kernel.options] == [expected, "ieee"]
