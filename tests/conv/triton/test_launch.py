"""The Triton kernels, interpreted, equal ATen; their plans are pure."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from shorthaul.conv.problem import ConvProblem
from tests.conv.tolerances import TOLERANCES

pytest.importorskip("triton")

from shorthaul.conv.triton import launch as triton_launch
from shorthaul.conv.triton.launch import TILES, choose_tile, pack_weight, unpack_weight
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
