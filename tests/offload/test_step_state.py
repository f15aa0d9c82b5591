from __future__ import annotations

import math

import torch
from torch import nn

from shorthaul.offload.step_state import StepState, gradient_error


def test_gradients_and_random_state_come_back():
    module = nn.Linear(2, 2)
    module.weight.grad = torch.ones(2, 2)
    state = StepState(module)
    drawn = torch.rand(3)
    module.weight.grad.add_(4)
    module.bias.grad = torch.full((2,), 3.0)
    weight, bias = state.take_gradients()
    assert torch.equal(weight, torch.full((2, 2), 4.0))  # without those of before
    assert torch.equal(bias, torch.full((2,), 3.0))
    state.restore()
    assert torch.equal(module.weight.grad, torch.ones(2, 2))
    assert module.bias.grad is None
    assert torch.equal(torch.rand(3), drawn)


def test_the_error_of_gradients_is_relative_to_all_of_them_together():
    exact = [torch.tensor([3.0]), torch.tensor([4.0])]
    assert gradient_error(exact, exact) == 0
    assert math.isclose(gradient_error(exact, [torch.tensor([3.0]), torch.tensor([4.5])]), 0.1)
    assert gradient_error([torch.zeros(1)], [torch.ones(1)]) == 1
    assert gradient_error([torch.zeros(1)], [torch.zeros(1)]) == 0
