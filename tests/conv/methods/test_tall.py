"""The tall kernel: what a person reads, and the same bits as the kernel for any shape."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.conv.execution.execute import run_forward, run_grad_input
from shorthaul.conv.methods.base import ConvSchedule
from shorthaul.conv.methods.planar import PLANE_BYTES
from shorthaul.conv.methods.tall import (
    TALL_ROWS,
    TallKernel,
    can_pack_tall,
    emit_tall_kernel,
    tall_schedule,
)
from shorthaul.conv.planning.choice import choose_schedule
from shorthaul.conv.problem import LAYOUTS, PADDING_MODES, ConvProblem
from shorthaul.conv.problem.geometry import forward_task
from shorthaul.conv.problem.machine import AVX512
from tests.conv.problems import Case
from tests.conv.tolerances import require_close

KERNEL = TallKernel(torch.float32, True, "relu", AVX512, 8, 3)
PLANAR = ConvSchedule("planar", 1, 12, is_specialized=False, strip_bytes=PLANE_BYTES)


def test_the_head_says_what_it_is() -> None:
    source = emit_tall_kernel(KERNEL)
    assert source.name == "conv_tall_float32_channels_last"
    assert source.text.startswith(
        "// Depthwise convolution, 8 rows high or more: any shape, float32, channels_last.\n"
        "// Register tile: 8 output rows x 3 vectors of channels for avx512.\n"
    )
    assert "tile_rows = 8, tile_pixels = 3;" in source.text


@st.composite
def tall_cases(draw: st.DrawFn, layout: str, dtype: torch.dtype, activation: str | None) -> Case:
    kernel = (1, draw(st.integers(TALL_ROWS, 12)), draw(st.integers(1, 9)))
    depth, height, width = (
        draw(st.integers(1, 2)),
        draw(st.integers(12, 24)),
        draw(st.integers(9, 40)),
    )
    high_padding = st.integers(0, 8)
    problem = ConvProblem(
        channels := draw(st.sampled_from((8, 19, 32, 41))),
        channels,
        kernel,
        stride=(1, 1, draw(st.sampled_from((1, 1, 1, 2, 3)))),
        dilation=(1, 1, draw(st.sampled_from((1, 1, 1, 2)))),
        padding=(
            (0, depth - 1),
            (draw(high_padding), draw(high_padding)),
            (draw(high_padding), 8),
        ),
        padding_mode=draw(st.sampled_from(PADDING_MODES)),
        groups=channels,
        dtype=dtype,
        layout=layout,
        activation=activation,
        has_bias=draw(st.booleans()),
    )
    return Case(problem, draw(st.integers(1, 2)), (depth, height, width))


@pytest.mark.parametrize(
    ("layout", "dtype", "activation"),
    [
        ("channels_last", torch.float32, None),
        ("contiguous", torch.float32, None),
        ("channels_last", torch.bfloat16, "silu"),
        pytest.param("contiguous", torch.float16, "relu", marks=pytest.mark.slow),
        pytest.param("channels_last", torch.float16, None, marks=pytest.mark.slow),
        pytest.param("channels_last", torch.float64, "relu6", marks=pytest.mark.slow),
        pytest.param("contiguous", torch.float64, None, marks=pytest.mark.slow),
        pytest.param("contiguous", torch.bfloat16, None, marks=pytest.mark.slow),
    ],
)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_it_gives_the_bits_of_the_kernel_for_any_shape(
    layout: str, dtype: torch.dtype, activation: str | None, data: st.DataObject
) -> None:
    case = data.draw(tall_cases(layout, dtype, activation))
    problem = case.problem
    assert can_pack_tall(forward_task(problem, case.batch, case.sizes))
    torch.set_num_threads(data.draw(st.sampled_from((1, 2))))
    # Small strips make several blocks, also of columns.
    tall = replace(tall_schedule(), strip_bytes=data.draw(st.sampled_from((30_000, 512 * 1024))))
    image, weight, bias = case.tensors()
    expected = run_forward(problem, image, weight, bias, schedule=PLANAR)
    assert torch.equal(run_forward(problem, image, weight, bias, schedule=tall), expected)
    residual = torch.randn_like(expected)
    got = run_forward(problem, image, weight, bias, residual=residual, schedule=tall)
    other = run_forward(problem, image, weight, bias, residual=residual, schedule=PLANAR)
    assert torch.equal(got, other)


def test_tiles_of_other_machines_give_the_same_bits() -> None:
    problem = ConvProblem(
        19, 19, (1, 9, 5), padding=((0, 0), (4, 4), (2, 2)), groups=19, layout="channels_last"
    )
    image, weight, _ = Case(problem, 2, (1, 22, 23)).tensors()
    high, low = (
        run_forward(problem, image, weight, schedule=replace(tall_schedule(), rows=rows))
        for rows in (8, 4)
    )
    assert torch.equal(high, low)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(1, 40, 37), (1, 3, 5)], ids=str)
def test_it_is_chosen_and_agrees_with_pytorch(layout: str, sizes: tuple[int, int, int]) -> None:
    # Of the small image, most rows and columns of every window are padding.
    problem = ConvProblem(
        32, 32, (1, 13, 11), padding=((0, 0), (6, 6), (5, 5)), groups=32, layout=layout
    )
    assert choose_schedule(problem, (8, 1, 40, 37)) == tall_schedule()
    image, weight, _ = Case(problem, 2, sizes).tensors()
    expected = torch.nn.functional.conv3d(image, weight, padding=(0, 6, 5), groups=32)
    got = run_forward(problem, image, weight, schedule=tall_schedule())
    require_close(got, expected)
    gradient = run_grad_input(problem, expected, weight, sizes)
    wanted = torch.nn.grad.conv3d_input(image.shape, weight, expected, padding=(0, 6, 5), groups=32)
    require_close(gradient, wanted)


def test_zeros_outside_the_image_do_not_meet_the_weights() -> None:
    # Rows of padding are skipped: an infinite weight that lies in it everywhere stays without effect.
    problem = ConvProblem(
        16, 16, (1, 9, 1), padding=((0, 0), (8, 0), (0, 0)), groups=16, layout="channels_last"
    )
    image, weight, _ = Case(problem, 1, (1, 4, 6)).tensors()
    weight[:, :, :, :5] = torch.inf
    assert run_forward(problem, image, weight, schedule=tall_schedule()).isfinite().all()


def test_what_it_cannot_take() -> None:
    def is_tall(problem: ConvProblem) -> bool:
        return can_pack_tall(forward_task(problem, 1, (9, 300, 300)))

    depthwise = ConvProblem(16, 16, (1, 9, 9), groups=16)
    assert is_tall(depthwise)
    assert is_tall(replace(depthwise, layout="channels_last", stride=(1, 1, 2)))
    for other in (
        replace(depthwise, groups=8),
        replace(depthwise, out_channels=32),
        replace(depthwise, in_channels=1, out_channels=1, groups=1),
        replace(depthwise, kernel=(3, 9, 9)),
        replace(depthwise, kernel=(1, 7, 9)),
        replace(depthwise, kernel=(1, 200, 200)),
        replace(depthwise, dilation=(1, 2, 1)),
        replace(depthwise, stride=(1, 2, 1)),
    ):
        assert not is_tall(other)
