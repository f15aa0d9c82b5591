"""`torch.func.vmap` and `grad` give what a loop gives."""

import itertools

import pytest
import torch

from shorthaul.conv.functional import conv2d
from tests.conv.tolerances import require_close


def _convolve(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    return conv2d(
        image, weight, bias, stride=2, padding=1, groups=2, activation="relu", residual=residual
    )


@pytest.mark.parametrize("mapped", list(itertools.product((True, False), repeat=4))[:-1])
def test_any_arguments_can_be_mapped(mapped: tuple[bool, ...]) -> None:
    torch.manual_seed(0)
    shapes = ((2, 4, 6, 5), (8, 2, 3, 3), (8,), (2, 8, 3, 3))
    arguments = [
        torch.randn(*((3,) if is_mapped else ()), *shape)
        for shape, is_mapped in zip(shapes, mapped, strict=True)
    ]
    dims = tuple(0 if each else None for each in mapped)
    got = torch.func.vmap(_convolve, dims)(*arguments)
    for index in range(3):
        one = [
            each[index] if is_mapped else each
            for each, is_mapped in zip(arguments, mapped, strict=True)
        ]
        require_close(got[index], _convolve(*one))


@pytest.mark.parametrize("argument", [0, 1, 2, 3])
def test_gradients_per_sample(argument: int) -> None:
    torch.manual_seed(0)
    images = torch.randn(3, 2, 4, 6, 5)
    arguments = [
        images[0],
        torch.randn(8, 2, 3, 3),
        torch.randn(8),
        torch.randn(2, 8, 3, 3),
    ]
    gradient = torch.func.grad(lambda *each: _convolve(*each).sum(), argnums=argument)
    got = torch.func.vmap(gradient, (0, None, None, None))(images, *arguments[1:])
    for index in range(3):
        require_close(got[index], gradient(images[index], *arguments[1:]))


def test_second_derivatives_can_be_mapped() -> None:
    torch.manual_seed(0)
    image = torch.randn(1, 2, 4, 4, dtype=torch.float64)
    weight = torch.randn(2, 2, 2, 2, dtype=torch.float64)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        return conv2d(image, weight).pow(3).sum()

    got = torch.func.jacrev(torch.func.jacrev(loss))(weight)
    expected = torch.autograd.functional.hessian(
        lambda weight: torch.conv2d(image, weight).pow(3).sum(), weight
    )
    require_close(got, expected)
