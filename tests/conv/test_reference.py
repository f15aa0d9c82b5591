"""The readable oracle: the published index maps, letter by letter, and ATen's results."""

import pytest
import torch
from hypothesis import given, settings

from shorthaul.conv import aten
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.reference import conv_forward, window_order_filter, window_tensor, windows
from tests.conv.problems import Case, cases
from tests.conv.tolerances import require_close


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_window_tensor_has_the_published_index_map(stride: int) -> None:
    kernel_height, kernel_width = 3, 2  # unequal: the paper's print mixes them up
    problem = ConvProblem(2, 4, (1, kernel_height, kernel_width), stride=(1, stride, stride))
    image = torch.randn(2, 2, 1, 9, 7)
    tensor = window_tensor(problem, image)
    _, rows, columns = problem.output_sizes((1, 9, 7))
    assert tensor.shape == (2, 2, 1, rows, 7 * kernel_height)
    for m in range(rows):
        for k in range(7):
            for u in range(kernel_height):
                assert torch.equal(
                    tensor[:, :, 0, m, k * kernel_height + u], image[:, :, 0, m * stride + u, k]
                )
    filters = torch.randn(4, 2, kernel_height, kernel_width)
    ordered = window_order_filter(problem, filters)
    every = windows(problem, tensor)
    assert every.shape == (2, 2, 1, rows, columns, kernel_width * kernel_height)
    for n in range(columns):
        start = n * stride * kernel_height
        run = tensor[..., start : start + kernel_width * kernel_height]
        assert torch.equal(every[:, :, :, :, n], run)
    for v in range(kernel_width):
        for u in range(kernel_height):
            assert torch.equal(ordered[:, :, v * kernel_height + u], filters[:, :, u, v])


def test_windows_are_a_view_without_dilation() -> None:
    problem = ConvProblem(2, 2, (1, 3, 3))
    tensor = window_tensor(problem, torch.randn(1, 2, 1, 6, 6))
    assert windows(problem, tensor).data_ptr() == tensor.data_ptr()


@settings(deadline=None, max_examples=60)
@given(cases())
def test_window_order_convolution_is_convolution(case: Case) -> None:
    image, weight, bias = case.tensors()
    require_close(
        conv_forward(case.problem, image, weight, bias),
        aten.run_forward(case.problem, image, weight, bias),
    )
