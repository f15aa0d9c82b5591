"""The Triton kernels, interpreted, equal ATen; their plans are pure."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from shorthaul.conv.problem import ConvProblem
from tests.conv.tolerances import TOLERANCES

pytest.importorskip("triton")

from shorthaul.conv.triton import launch as triton_launch
from shorthaul.conv.triton.launch import (
    LEAST_PART_PIXELS,
    MOST_PART_PIXELS,
    TILES,
    choose_part_pixels,
    choose_tile,
    find_tile_named,
    pack_weight,
    unpack_weight,
)
from tests.triton_programs import run_interpreted

INTERPRETED = "tests.conv.interpreted_triton"
DTYPES = {str(dtype): dtype for dtype in TOLERANCES}


def _require_small_errors(results: list[dict[str, Any]], count: int) -> None:
    assert len(results) == count
    for each in results:
        tolerance = 2 * TOLERANCES[DTYPES[each["dtype"]]]
        for name in ("forward", "grad_input", "grad_weight"):
            assert each[name] <= tolerance, f"{each['problem']}: {name} is off by {each[name]:.3g}"


def test_interpreted_kernels_equal_aten() -> None:
    _require_small_errors(run_interpreted(INTERPRETED, 6, seed=0), 6)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_interpreted_kernels_equal_aten_over_many_problems() -> None:
    _require_small_errors(run_interpreted(INTERPRETED, 1000, seed=1), 1000)


def test_weights_are_packed_in_window_order() -> None:
    problem = ConvProblem(6, 4, (1, 3, 2), groups=2)
    weight = torch.randn(problem.weight_shape)
    packed = pack_weight(problem, weight)
    for kw in range(2):
        for kh in range(3):
            for channel in range(3):
                assert torch.equal(packed[1, kw, 0, kh, channel], weight[2:, channel, 0, kh, kw])
    assert torch.equal(unpack_weight(problem, packed), weight)


def test_tiles_follow_the_sizes() -> None:
    assert choose_tile(10_000, 256) == TILES[0]
    assert choose_tile(10_000, 40) == TILES[1]
    assert choose_tile(10_000, 3).columns == 16
    assert choose_tile(10, 64).rows == 64


def test_double_precision_is_not_offered() -> None:
    problem = ConvProblem(6, 4, (1, 3, 2), dtype=torch.float64)
    assert triton_launch.supports(problem) == "torch.float64 has no Triton kernel"


@pytest.mark.parametrize(("asked", "is_rounded"), [("highest", False), ("high", True)])
def test_float32_is_rounded_where_the_call_or_pytorch_allows_it(
    asked: str, is_rounded: bool
) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(asked)
    try:
        exact, half = ConvProblem(6, 4, (1, 3, 2)), ConvProblem(6, 4, (1, 3, 2), dtype=torch.half)
        for problem, expected in (
            (exact, is_rounded),
            (replace(exact, exact=False), True),
            (half, False),
        ):
            assert triton_launch._constants(problem)["PRECISION"] == (
                "tf32" if expected else "ieee"
            )
        assert triton_launch.uses_tensor_cores(exact) == is_rounded
    finally:
        torch.set_float32_matmul_precision(before)


def test_tiles_shrink_until_every_multiprocessor_has_a_program() -> None:
    assert choose_tile(1568, 512) == TILES[0]
    small = choose_tile(1568, 512, multiprocessors=108)
    assert (small.rows, small.columns) == (64, 64)  # 13 x 4 and 13 x 8 programs are too few
    assert choose_tile(1568, 512, multiprocessors=108, groups=4) == TILES[0]
    most = choose_tile(64, 64, multiprocessors=1000)
    assert (most.rows, most.columns) == (128, 16)  # four programs


@pytest.mark.parametrize("multiprocessors", [0, 8, 108, 10_000])
def test_parts_of_a_weights_gradient_give_every_multiprocessor_work(multiprocessors: int) -> None:
    for pixels, programs in ((10, 1), (1568, 4), (401_408, 1), (10**8, 36)):
        size = choose_part_pixels(pixels, programs, multiprocessors)
        assert size & (size - 1) == 0
        assert size <= max(MOST_PART_PIXELS, pixels)
        has_work = -(-pixels // size) * programs >= multiprocessors
        assert has_work or size <= LEAST_PART_PIXELS
        if size < min(MOST_PART_PIXELS, pixels):
            assert -(-pixels // (2 * size)) * programs < multiprocessors, "no smaller than needed"


def test_a_tile_is_known_by_its_name() -> None:
    assert [find_tile_named(each.name) for each in TILES] == [*TILES]
    assert find_tile_named("of another edition") is None
