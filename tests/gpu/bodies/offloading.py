"""Activations of a device on disk: gradients are bit-equal, whatever is packed and wherever it lies."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence

import torch
from torch import nn

import shorthaul as sh
from tests.gpu.suites import body


@body
def an_offloaded_step_is_bit_equal(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU()).to(device)
    x = torch.randn(256, 64, device="cpu").to(device)
    model(x).sum().backward()
    expected = [each.grad.clone() for each in model.parameters()]
    with tempfile.TemporaryDirectory() as directory:
        offload = sh.offload_activations(directory, minimum_bytes=1024, policy="all")
        for _ in range(3):
            model.zero_grad()
            with offload:
                model(x).sum().backward()
            for parameter, wanted in zip(model.parameters(), expected, strict=True):
                assert torch.equal(parameter.grad, wanted)
        assert offload.report().counts.offloaded > 0
        offload.close()


def _require_same_gradients(
    step: Callable[[], object], parameters: Sequence[nn.Parameter], **how: object
) -> None:
    for each in parameters:
        each.grad = None
    step()
    expected = [each.grad.clone() for each in parameters]
    with tempfile.TemporaryDirectory() as directory:
        offload = sh.offload_activations(directory, minimum_bytes=1024, **how)
        for _ in range(3):
            for each in parameters:
                each.grad = None
            with offload:
                step()
            for parameter, wanted in zip(parameters, expected, strict=True):
                assert torch.equal(parameter.grad, wanted)
        offload.close()


@body
def steps_are_bit_equal_under_every_policy_and_budget(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).to(device)
    x = torch.randn(256, 64, device="cpu").to(device)
    for how in (
        {"policy": "all", "compress": "auto"},
        {"budget": "512KiB"},
        {"policy": "all", "budget": "1MiB"},
    ):
        _require_same_gradients(
            lambda: model(x).square().sum().backward(), [*model.parameters()], **how
        )


@body
def a_step_on_two_devices_is_bit_equal(device: torch.device) -> None:
    first, last = nn.Linear(64, 64), nn.Linear(64, 64).to(device)  # host and device
    x = torch.randn(256, 64, device="cpu")

    def step() -> None:
        last(torch.tanh(first(x)).to(device)).tanh().sum().backward()

    _require_same_gradients(step, [*first.parameters(), *last.parameters()], policy="all")
