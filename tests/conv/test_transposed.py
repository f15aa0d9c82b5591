"""Transposed convolutions equal ATen's."""

import itertools
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from shorthaul.conv import transposed
from shorthaul.errors import ConvolutionError
from shorthaul.fallbacks import taken_fallbacks
from tests.conv.tolerances import require_close

NAMES = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
INFOS = {each.name.rpartition(".")[2]: each for each in op_db if "conv_transpose" in each.name}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", NAMES)
def test_all_samples_of_torch(name: str, dtype: torch.dtype) -> None:
    samples = list(INFOS[name].sample_inputs("cpu", dtype, requires_grad=True))
    assert len(samples) >= 10
    for sample in samples:
        arguments = (sample.input, *sample.args)
        expected = INFOS[name].op(*arguments, **sample.kwargs)
        got = getattr(transposed, name)(*arguments, **sample.kwargs)
        require_close(got, expected)
        leaves = [each for each in arguments if isinstance(each, torch.Tensor)]
        gradient = torch.randn_like(expected)
        for one, other in zip(
            torch.autograd.grad(got, leaves, gradient),
            torch.autograd.grad(expected, leaves, gradient),
            strict=True,
        ):
            require_close(one, other)


def test_gradients_and_second_gradients() -> None:
    torch.manual_seed(0)
    arguments = [
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 4, 3, 4), (4, 2, 3, 2), (4,))
    ]

    def run(*each: torch.Tensor) -> torch.Tensor:
        return transposed.conv_transpose2d(*each, stride=2, padding=1, output_padding=1, groups=2)

    assert torch.autograd.gradcheck(run, arguments, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, arguments, fast_mode=True)


def test_rows_that_belong_to_no_window_are_left_to_aten() -> None:
    image, weight = torch.randn(1, 2, 4, 4), torch.randn(2, 3, 3, 3)
    options: dict[str, Any] = {"stride": 1, "output_padding": 1, "dilation": 2}
    got = transposed.conv_transpose2d(image, weight, **options)
    assert torch.equal(got, torch.nn.functional.conv_transpose2d(image, weight, **options))
    assert "output_padding is not below stride" in {each.reason for each in taken_fallbacks()}


def test_channels_last_stays_so() -> None:
    image = torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last)
    got = transposed.conv_transpose2d(image, torch.randn(4, 3, 3, 3), stride=2)
    assert got.is_contiguous(memory_format=torch.channels_last)


def test_compiled_whole() -> None:
    image, weight = torch.randn(2, 4, 5, 5), torch.randn(4, 3, 3, 3)

    def run(image: torch.Tensor) -> torch.Tensor:
        return transposed.conv_transpose2d(image, weight, stride=2)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    require_close(compiled(image), run(image))


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((1, 3, 4, 4), (2, 3, 3, 3)), {}, "to have 2 channels, but got 3 channels instead"),
        (((1, 2, 1, 1), (2, 3, 3, 3)), {"padding": 2}, "Output size is too small"),
        (((1, 2, 4, 4), (2, 3, 3, 3), (2,)), {}, "expected bias to be 1-dimensional with 3"),
    ],
)
def test_wrong_arguments_are_refused(
    shapes: tuple[tuple[int, ...], ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConvolutionError, match=message):
        transposed.conv_transpose2d(*(torch.zeros(shape) for shape in shapes), **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [(1, 7), (7, 1)])
def test_permuted_weights_of_one_row_have_gradients_by_aten_too(
    kernel: tuple[int, int], dtype: torch.dtype
) -> None:
    image = torch.randn(2, 3, 9, 9, dtype=dtype).to(memory_format=torch.channels_last)
    dense = torch.randn(3, 5, *kernel, dtype=dtype)
    options: dict[str, Any] = {"output_padding": 1, "dilation": 2}

    def gradients(convolve: Any, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = image.detach().requires_grad_(), weight.requires_grad_()
        return torch.autograd.grad(convolve(*leaves, **options).square().sum(), leaves)

    expected = gradients(torch.nn.functional.conv_transpose2d, dense.clone())
    for order in itertools.permutations(range(4)):
        back = [order.index(axis) for axis in range(4)]
        weight = dense.permute(order).contiguous().permute(back).detach()
        for one, other in zip(
            gradients(transposed.conv_transpose2d, weight), expected, strict=True
        ):
            require_close(one, other, 1e-5)
