"""The grouped kernel: what a person reads, and the same bits as the planar kernel."""

from dataclasses import replace

import pytest
import torch

from shorthaul.conv.execution.execute import run_forward
from shorthaul.conv.methods.base import ConvSchedule
from shorthaul.conv.methods.grouped import GroupedKernel, can_group, emit_grouped_kernel
from shorthaul.conv.methods.planar import PLANE_BYTES
from shorthaul.conv.planning.choice import choose_schedule
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.problem.geometry import KernelShape, forward_task
from shorthaul.conv.problem.machine import AVX2, this_machine
from tests.conv.problems import Case

SHAPE = KernelShape(4, 4, 8, (1, 3, 3), (1, 1, 1), (1, 1, 1))
PLANAR = ConvSchedule("planar", 4, 3, is_specialized=False, strip_bytes=PLANE_BYTES)
GROUPED = ConvSchedule("grouped", 8, 1, strip_bytes=0)
PROBLEM = ConvProblem(
    32,
    32,
    (1, 3, 3),
    padding=((0, 0), (1, 2), (1, 1)),
    groups=8,
    layout="channels_last",
    has_bias=True,
)


def test_the_head_says_what_it_is() -> None:
    source = emit_grouped_kernel(GroupedKernel(torch.float32, None, AVX2, 8, SHAPE))
    assert source.name == "conv_grouped_4to4_1x3x3_g8"
    assert "constexpr int tile_pixels = 8, per_group = 4;" in source.text
    assert "constexpr int64_t channels = 32, row_stride = 1;" in source.text


@pytest.mark.parametrize(
    "problem",
    [
        PROBLEM,
        replace(PROBLEM, stride=(1, 2, 2), dilation=(1, 1, 2), padding_mode="reflect"),
        replace(PROBLEM, groups=16, dtype=torch.bfloat16, activation="relu"),
    ],
    ids=lambda each: each.describe(),
)
def test_it_gives_the_bits_of_the_planar_kernel(problem: ConvProblem) -> None:
    if this_machine().lanes(4) % problem.in_channels_per_group:
        pytest.skip("groups do not fill vectors of this machine")
    for sizes in ((1, 9, 25), (1, 4, 8)):
        case = Case(problem, 2, sizes)
        assert can_group(forward_task(problem, 2, sizes))
        image, weight, bias = case.tensors()
        got = run_forward(problem, image, weight, bias, schedule=GROUPED)
        planar = replace(PLANAR, rows=min(4, problem.out_channels_per_group))
        assert torch.equal(got, run_forward(problem, image, weight, bias, schedule=planar))


def test_what_it_is_chosen_for() -> None:
    def method(problem: ConvProblem) -> str:
        return choose_schedule(problem, (4, 1, 56, 56)).method

    if this_machine().lanes(4) != 8:
        pytest.skip("the examples are for vectors of eight")
    assert method(PROBLEM) == "grouped"
    assert method(replace(PROBLEM, layout="contiguous")) == "planar"
    assert method(replace(PROBLEM, groups=4)) == "window"  # eight channels: as wide as a vector
    assert not can_group(forward_task(replace(PROBLEM, out_channels=64), 1, (1, 9, 9)))
