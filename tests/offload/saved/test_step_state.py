from __future__ import annotations

import math

import torch
from torch import nn

from shorthaul.offload.saved.step_state import StepState, gradient_error


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


def test_the_buffers_of_a_module_come_back_and_those_that_stayed_keep_their_version():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3).eval())
    module.register_buffer("scale", torch.tensor([0.0, float("nan")]))
    before = {name: each.clone() for name, each in module.state_dict().items()}
    state, scale = StepState(module), module.scale
    versions = [each._version for each in module[1].buffers()]
    module(torch.randn(8, 3))
    module.scale = torch.ones(2)
    assert not torch.equal(module[0].running_mean, before["0.running_mean"])
    state.restore()
    for name, each in module.state_dict().items():
        assert each.numpy().tobytes() == before[name].numpy().tobytes(), name
    assert module.scale is scale
    assert [each._version for each in module[1].buffers()] == versions


def test_the_error_of_gradients_is_relative_to_all_of_them_together():
    exact = [torch.tensor([3.0]), torch.tensor([4.0])]
    assert gradient_error(exact, exact) == 0
    assert math.isclose(gradient_error(exact, [torch.tensor([3.0]), torch.tensor([4.5])]), 0.1)
    assert gradient_error([torch.zeros(1)], [torch.ones(1)]) == 1
    assert gradient_error([torch.zeros(1)], [torch.zeros(1)]) == 0
