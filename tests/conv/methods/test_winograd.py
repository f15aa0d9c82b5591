"""Row-wise Winograd: fewer products, a larger error that is stated, the same bits for any threads."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.conv import conv2d
from shorthaul.conv.execution.execute import run_forward
from shorthaul.conv.methods.window_kernel import WindowKernel
from shorthaul.conv.methods.winograd import (
    Winograd,
    WinogradKernel,
    can_use_winograd,
    emit_winograd_kernel,
    plan_winograd,
    transform_weights,
    winograd_products,
)
from shorthaul.conv.planning.choice import choose_schedule
from shorthaul.conv.problem import LAYOUTS, PADDING_MODES, ConvProblem
from shorthaul.conv.problem.geometry import forward_task
from shorthaul.conv.problem.machine import AVX2, this_machine
from tests.conv.problems import Case, in_double
from tests.conv.tolerances import TOLERANCES, require_close

LANES = this_machine().lanes(4)
AROUND = ((0, 0), (1, 1), (1, 1))
INEXACT = ConvProblem(32, 40, (1, 3, 3), padding=AROUND, exact=False, has_bias=True)


def test_the_head_says_what_it_is() -> None:
    window = WindowKernel(torch.float32, True, None, AVX2, 6, 2)
    source = emit_winograd_kernel(WinogradKernel(window, 4))
    assert source.name == "conv_winograd4_general"
    assert source.text.startswith(
        "// Convolution by row-wise Winograd F(4, 3): general, float32,\n"
        "// channels last. Register tile: 6 windows x 16 output channels for avx2.\n"
    )


@pytest.mark.parametrize("outputs", [2, 4])
def test_transformed_weights_are_the_kernel_row_at_the_points(outputs: int) -> None:
    row = torch.tensor([3.0, 5.0, 7.0], dtype=torch.float64)
    points = transform_weights(row, outputs)
    # Scaled values of the polynomial 3 + 5x + 7x^2 at 0, 1, -1 (, 2, -2) and infinity.
    scales = [1, 1 / 2, 1 / 2] if outputs == 2 else [1 / 4, -1 / 6, -1 / 6, 1 / 24, 1 / 24]
    values = [3, 15, 5, 41, 21][: len(scales)]
    expected = [scale * value for scale, value in zip(scales, values, strict=True)]
    assert points.tolist() == pytest.approx([*expected, 7])


def general(case: Case, outputs: int):
    """Winograd with a kernel for any shape, so that few are compiled."""
    task = forward_task(case.problem, case.batch, case.sizes)
    assert can_use_winograd(task)
    schedule = Winograd(outputs).schedule(task)
    return replace(schedule, rows=6, vectors=2, is_specialized=False)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("outputs", [2, 4])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_it_is_the_convolution_up_to_its_error(
    outputs: int, layout: str, data: st.DataObject
) -> None:
    groups = data.draw(st.sampled_from((1, 2)))
    problem = ConvProblem(
        groups * LANES * data.draw(st.sampled_from((2, 3))),
        groups * data.draw(st.sampled_from((16, 19, 40))),
        (1, data.draw(st.integers(1, 4)), 3),
        padding=(
            (0, 0),
            (data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))),
            (data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))),
        ),
        padding_mode=data.draw(st.sampled_from(PADDING_MODES)),
        groups=groups,
        layout=layout,
        has_bias=data.draw(st.booleans()),
        exact=False,
    )
    sizes = (1, data.draw(st.integers(5, 20)), data.draw(st.integers(5, 20)))
    case = Case(problem, data.draw(st.integers(1, 2)), sizes)
    image, weight, bias = case.tensors()
    got = run_forward(problem, image, weight, bias, schedule=general(case, outputs))
    wide = [None if each is None else each.double() for each in (image, weight, bias)]
    expected = run_forward(in_double(problem), *wide)
    require_close(got, expected.float(), 4 * TOLERANCES[torch.float32])


def test_the_cost_model_takes_it_only_where_it_saves_products() -> None:
    def method(problem: ConvProblem, width: int) -> str:
        return choose_schedule(problem, (4, 1, 56, width)).method

    assert method(INEXACT, 56) == "winograd4"
    assert method(replace(INEXACT, exact=True), 56) == "window"
    assert method(INEXACT, 5) == "window"  # 12 products instead of 15
    assert method(replace(INEXACT, stride=(1, 1, 2)), 56) == "window"
    assert method(replace(INEXACT, in_channels=3), 56) != "winograd4"
    assert winograd_products(forward_task(INEXACT, 1, (1, 8, 56)), 4) == 0.5


def test_threads_and_batch_change_no_bit() -> None:
    case = Case(INEXACT, 3, (1, 30, 37))
    image, weight, bias = case.tensors()
    schedule = general(case, 4)
    expected = run_forward(INEXACT, image, weight, bias, schedule=schedule)
    torch.set_num_threads(2)
    assert torch.equal(run_forward(INEXACT, image, weight, bias, schedule=schedule), expected)
    torch.set_num_threads(1)
    alone = run_forward(INEXACT, image[1:2], weight, bias, schedule=schedule)
    assert torch.equal(alone, expected[1:2])
    narrow = replace(schedule, strip_bytes=16 * 1024)  # several blocks of tiles
    plan = plan_winograd(forward_task(INEXACT, 3, case.sizes), narrow, 1, 4)
    assert plan.block_tiles < 10
    assert torch.equal(run_forward(INEXACT, image, weight, bias, schedule=narrow), expected)


def test_inexact_convolutions_have_the_gradients_of_exact_ones() -> None:
    image = torch.randn(2, 32, 40, 40, requires_grad=True)
    weight = torch.randn(40, 32, 3, 3, requires_grad=True)
    sizes = (2, 1, 40, 40)
    inexact = replace(INEXACT, has_bias=False)
    assert choose_schedule(inexact, sizes).method == "winograd4"
    results = [conv2d(image, weight, padding=1, exact=exact) for exact in (True, False)]
    require_close(results[1], results[0], 1e-5)
    assert not torch.equal(results[0], results[1])
    exact, other = (torch.autograd.grad(each.sum(), (image, weight)) for each in results)
    assert all(torch.equal(*pair) for pair in zip(exact, other, strict=True))
