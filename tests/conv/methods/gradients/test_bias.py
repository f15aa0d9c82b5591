"""The gradient of the bias: sums over pixels, in an order that no thread count changes."""

import pytest
import torch

from shorthaul.conv.execution.execute import run_grad_bias
from shorthaul.conv.execution.operators import convolution_grad_bias
from shorthaul.conv.methods.gradients.bias import BLOCK_PIXELS, emit_grad_bias_kernel
from shorthaul.conv.problem.machine import AVX2

LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last_3d}


def test_the_head_says_what_it_is() -> None:
    source = emit_grad_bias_kernel(torch.float32, True, AVX2)
    assert source.name == "conv_grad_bias_float32_channels_last"
    assert "// Gradient of the bias of a convolution: float32, channels last" in source.text


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 1), (2, 3, 1, 5, 7), (3, 19, 2, 9, 4), (2, 64, 1, 40, 31)]
)
def test_it_is_the_sum_over_pixels(layout: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    gradient = torch.randn(shape).to(dtype).contiguous(memory_format=LAYOUTS[layout])
    expected = gradient.double().sum((0, 2, 3, 4))
    limit = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(dtype, 1e-5)
    found = run_grad_bias(gradient)
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), expected, rtol=limit, atol=limit * 40)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_number_of_threads_gives_the_same_bits(layout: str) -> None:
    gradient = torch.randn(3, 24, 1, 50, BLOCK_PIXELS // 40).contiguous(
        memory_format=LAYOUTS[layout]
    )
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(run_grad_bias(gradient))
    assert torch.equal(*found)


def test_gradients_that_are_views_and_those_without_values() -> None:
    spread = torch.ones(()).expand(2, 3, 1, 4, 4)
    assert convolution_grad_bias(spread).tolist() == [32.0] * 3
    assert convolution_grad_bias(torch.zeros(0, 3, 1, 4, 4)).tolist() == [0.0] * 3


def test_vmap_keeps_its_elements_apart() -> None:
    gradients = torch.randn(4, 2, 3, 1, 5, 5)
    found = torch.func.vmap(convolution_grad_bias)(gradients)
    torch.testing.assert_close(found, gradients.sum((1, 3, 4, 5)))
