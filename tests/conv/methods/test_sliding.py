"""The sliding kernel: what a person reads, and the same bits as the kernel for any shape."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.conv.execution.execute import run_forward
from shorthaul.conv.methods.base import ConvSchedule
from shorthaul.conv.methods.depthwise import DEPTHWISE_TILE
from shorthaul.conv.methods.planar import PLANE_BYTES
from shorthaul.conv.methods.sliding import (
    SLIDING_BYTES,
    SlidingKernel,
    can_slide,
    choose_sliding_tile,
    emit_sliding_kernel,
)
from shorthaul.conv.problem import LAYOUTS, PADDING_MODES, ConvProblem
from shorthaul.conv.problem.geometry import forward_task
from shorthaul.conv.problem.machine import AVX2
from tests.conv.problems import Case

KERNEL = SlidingKernel(torch.float32, True, "relu", AVX2, 4, 3, 3, 1)


def test_the_head_says_what_it_is() -> None:
    source = emit_sliding_kernel(KERNEL)
    assert source.name == "conv_sliding_3s1_float32_channels_last"
    assert source.text.startswith(
        "// Depthwise convolution, 3 rows high, every 1. row: float32, channels_last.\n"
        "// Register tile: 4 output rows x 3 vectors of channels for avx2.\n"
    )
    assert "kernel_rows = 3, row_stride = 1;" in source.text


def test_contiguous_images_have_loops_of_their_own() -> None:
    text = emit_sliding_kernel(replace(KERNEL, channels_last=False)).text
    assert "SlidingPlane<" in text
    assert "SlidingPixels<" not in text


def other_schedule(problem: ConvProblem) -> ConvSchedule:
    """A kernel for any shape, which sums in the same order."""
    if problem.layout == "channels_last":
        return ConvSchedule("depthwise", *DEPTHWISE_TILE, is_specialized=False, strip_bytes=0)
    return ConvSchedule("planar", 1, 12, is_specialized=False, strip_bytes=PLANE_BYTES)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("kernel", "stride"), [(3, 1), (3, 2), pytest.param(7, 1, marks=pytest.mark.slow)]
)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_it_gives_the_bits_of_the_kernel_for_any_shape(
    layout: str, kernel: int, stride: int, data: st.DataObject
) -> None:
    height, width = data.draw(st.integers(7, 30)), data.draw(st.integers(7, 30))
    problem = ConvProblem(
        channels := data.draw(st.sampled_from((2, 8, 20))),
        channels,
        (1, kernel, data.draw(st.integers(1, 5))),
        stride=(1, stride, data.draw(st.integers(1, 3))),
        dilation=(1, 1, data.draw(st.integers(1, 2))),
        padding=(
            (0, 0),
            (data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))),
            (data.draw(st.integers(0, 3)), data.draw(st.integers(3, 6))),
        ),
        padding_mode=data.draw(st.sampled_from(PADDING_MODES)),
        groups=channels,
        layout=layout,
        has_bias=data.draw(st.booleans()),
    )
    case = Case(problem, data.draw(st.integers(1, 2)), (1, height, width))
    task = forward_task(problem, case.batch, case.sizes)
    assert can_slide(task)
    sliding = ConvSchedule("sliding", *choose_sliding_tile(task), strip_bytes=SLIDING_BYTES)
    image, weight, bias = case.tensors()
    got = run_forward(problem, image, weight, bias, schedule=sliding)
    expected = run_forward(problem, image, weight, bias, schedule=other_schedule(problem))
    assert torch.equal(got, expected)


def test_what_it_cannot_take() -> None:
    def slides(problem: ConvProblem) -> bool:
        return can_slide(forward_task(problem, 1, (9, 40, 40)))

    depthwise = ConvProblem(8, 8, (1, 3, 3), groups=8)
    assert slides(depthwise)
    for other in (
        replace(depthwise, groups=4),
        replace(depthwise, kernel=(3, 3, 3)),
        replace(depthwise, kernel=(1, 1, 31)),
        replace(depthwise, kernel=(1, 9, 9)),
        replace(depthwise, dilation=(1, 2, 1)),
        replace(depthwise, stride=(1, 3, 1)),
    ):
        assert not slides(other)
