"""The operators keep PyTorch's rules for operators."""

from typing import Any

import pytest
import torch

from shorthaul.conv.execution.operators import (
    convolution,
    convolution_grad_bias,
    convolution_grad_input,
    convolution_grad_weight,
    find_problem,
    run_convolution,
)

GEOMETRY = ((1, 2, 2), (0, 0, 1, 2, 0, 1), (1, 1, 1), 2)


def _tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def _arguments(name: str, mode: str, layout: str) -> tuple[Any, ...]:
    image, weight, gradient = _tensor(2, 4, 1, 9, 8), _tensor(8, 2, 3, 3), _tensor(2, 8, 1, 5, 4)
    rest = (*GEOMETRY, mode, layout, True)
    if name == "forward":
        return (image, weight, _tensor(8), *rest, None, _tensor(2, 8, 1, 5, 4))
    if name == "grad_bias":
        dense = torch.channels_last_3d if layout == "channels_last" else torch.contiguous_format
        return (gradient.detach().contiguous(memory_format=dense).requires_grad_(),)
    if name == "grad_input":
        return (gradient, weight, (1, 9, 8), *rest)
    return (gradient, image, (3, 3), *rest)


OPERATORS = {
    "forward": convolution,
    "grad_input": convolution_grad_input,
    "grad_weight": convolution_grad_weight,
    "grad_bias": convolution_grad_bias,
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(
    ("mode", "layout"), [("zeros", "contiguous"), ("reflect", "channels_last")]
)
def test_operators_keep_the_rules(name: str, mode: str, layout: str) -> None:
    torch.manual_seed(0)
    arguments = _arguments(name, mode, layout)
    done = torch.library.opcheck(OPERATORS[name].overload, arguments)
    assert set(done.values()) == {"SUCCESS"}


def test_a_fused_activation_keeps_the_rules() -> None:
    arguments = (torch.randn(2, 4, 1, 9, 8), torch.randn(8, 2, 3, 3), None)
    rest = (*GEOMETRY, "zeros", "channels_last", True, "relu", None)
    assert set(torch.library.opcheck(convolution.overload, (*arguments, *rest)).values()) == {
        "SUCCESS"
    }


def test_a_fused_activation_has_no_gradient_and_says_so() -> None:
    rest = (*GEOMETRY, "zeros", "contiguous", True, "relu", None)
    image, weight = torch.randn(2, 4, 1, 9, 8, requires_grad=True), torch.randn(8, 2, 3, 3)
    with pytest.raises(NotImplementedError, match="applies the activation separately"):
        convolution(image, weight, None, *rest)


@pytest.mark.parametrize(
    ("shape", "weight_shape"),
    [((0, 2, 1, 4, 4), (3, 2, 1, 3, 3)), ((2, 0, 1, 4, 4), (3, 0, 1, 3, 3))],
)
def test_empty_sums_are_the_bias(shape: tuple[int, ...], weight_shape: tuple[int, ...]) -> None:
    problem = find_problem(
        shape[1], 3, (1, 3, 3), (1, 1, 1), (0,) * 6, (1, 1, 1), 1, "zeros", "contiguous", True,
        torch.float32, True, "relu",
    )  # fmt: skip
    bias = torch.tensor([1.0, -1.0, 2.0])
    got = run_convolution(problem, torch.zeros(shape), torch.zeros(weight_shape), bias)
    assert torch.equal(got, bias.relu().view(1, 3, 1, 1, 1).expand(shape[0], 3, 1, 2, 2))


@pytest.mark.parametrize("batch", [0, 2])
def test_gradients_of_empty_tensors_are_zero(batch: int) -> None:
    channels = 0 if batch else 2
    geometry = ((1, 1, 1), (0,) * 6, (1, 1, 1), 1, "zeros", "contiguous", True)
    gradient = torch.ones(batch, 3, 1, 2, 2)
    weight = torch.ones(3, channels, 3, 3)
    image = torch.ones(batch, channels, 1, 4, 4)
    for_image = convolution_grad_input(gradient, weight, (1, 4, 4), *geometry)
    for_weight = convolution_grad_weight(gradient, image, (3, 3), *geometry)
    assert for_image.shape == image.shape
    assert torch.equal(for_weight, torch.zeros_like(weight))
