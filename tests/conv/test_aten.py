"""The fallback: ATen with the padding that it lacks, and exact transposes of it."""

import pytest
import torch
from hypothesis import given, settings

from shorthaul.conv import aten
from shorthaul.conv.problem import ACTIVATIONS, ConvProblem
from tests.conv.problems import Case, cases
from tests.conv.tolerances import require_close


@settings(deadline=None, max_examples=60)
@given(cases())
def test_gradients_are_those_of_autograd_through_the_padding(case: Case) -> None:
    image, weight, _ = case.tensors()
    image.requires_grad_()
    weight.requires_grad_()
    output = aten.run_forward(case.problem, image, weight)
    gradient = torch.randn(output.shape, dtype=output.dtype)
    for_image, for_weight = torch.autograd.grad(output, (image, weight), gradient)
    with torch.no_grad():
        require_close(aten.run_grad_input(case.problem, gradient, weight, case.sizes), for_image)
        require_close(aten.run_grad_weight(case.problem, gradient, image), for_weight)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_bias_residual_and_activation_come_in_this_order(activation: str) -> None:
    problem = ConvProblem(2, 3, (1, 1, 1), has_bias=True, activation=activation)
    image, weight = torch.randn(1, 2, 1, 4, 4), torch.randn(3, 2, 1, 1, 1)
    bias, residual = torch.randn(3), torch.randn(1, 3, 1, 4, 4)
    named = getattr(torch.nn.functional, activation)
    expected = named(torch.conv3d(image, weight, bias) + residual)
    out = torch.full_like(residual, torch.nan)
    assert aten.run_forward(problem, image, weight, bias, residual, out=out) is out
    require_close(out, expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_only_values_of_ones_own_without_gradient_are_written_over(activation: str) -> None:
    value = torch.randn(100, dtype=torch.float64)
    expected = getattr(torch.nn.functional, activation)(value)
    kept = value.clone()
    assert torch.equal(aten.apply_activation(value, activation), expected)
    tracked = value.clone().requires_grad_()
    assert torch.equal(aten.apply_activation(tracked * 1, activation, is_own=True), expected)
    (gradient,) = torch.autograd.grad(
        aten.apply_activation(tracked * 1, activation, is_own=True).sum(), tracked
    )
    leaf = value.clone().requires_grad_()
    getattr(torch.nn.functional, activation)(leaf).sum().backward()
    assert torch.equal(gradient, leaf.grad)
    assert torch.equal(value, kept)
    written = aten.apply_activation(value, activation, is_own=True)
    assert torch.equal(written, expected)
    assert (written is value) == (activation != "gelu")


def test_two_dimensions_are_given_to_aten_as_two() -> None:
    problem = ConvProblem(2, 3, (1, 3, 3), layout="channels_last")
    with torch.profiler.profile() as profile:
        output = aten.run_forward(problem, torch.randn(1, 2, 1, 5, 5), torch.randn(3, 2, 3, 3))
    names = {each.key for each in profile.key_averages()}
    assert "aten::conv2d" in names
    assert "aten::conv3d" not in names
    assert output.is_contiguous(memory_format=torch.channels_last_3d)
