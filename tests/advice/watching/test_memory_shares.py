"""What is left for activations: each share against what training then really takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from shorthaul.advice.watching.memory_shares import (
    MemoryShares,
    estimate_coming_state_bytes,
    measure_shares,
)
from shorthaul.errors import OffloadBudgetError, PlanError, ProcessMemoryError

OPTIMIZERS = {
    "SGD": lambda given: torch.optim.SGD(given, 0.1),
    "momentum": lambda given: torch.optim.SGD(given, 0.1, momentum=0.9),
    "Adam": lambda given: torch.optim.Adam(given),
    "AdamW, fused": lambda given: torch.optim.AdamW(given, fused=True),
    "amsgrad": lambda given: torch.optim.Adam(given, amsgrad=True),
    "Adagrad": lambda given: torch.optim.Adagrad(given),
    "RMSprop": lambda given: torch.optim.RMSprop(given, foreach=True),
}


def state_bytes_of(optimizer: torch.optim.Optimizer) -> int:
    states = optimizer.state.values()
    tensors = [value for state in states for value in state.values() if torch.is_tensor(value)]
    return sum(each.nbytes for each in tensors)


def make_model() -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 8))
    model[2].bias.requires_grad_(False)
    return model


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_coming_states_are_those_that_a_step_makes(kind: str) -> None:
    model = make_model()
    optimizer = OPTIMIZERS[kind](model.parameters())
    had_bytes = state_bytes_of(optimizer)  # Adagrad makes them at once
    weights = [each.detach().clone() for each in model.parameters()]
    estimated_bytes = estimate_coming_state_bytes(optimizer)
    assert state_bytes_of(optimizer) == had_bytes
    assert all(each.grad is None for each in model.parameters())
    assert all(map(torch.equal, weights, model.parameters()))
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    assert estimated_bytes == state_bytes_of(optimizer) - had_bytes
    assert estimate_coming_state_bytes(optimizer) == 0  # nothing more is coming


def test_an_optimizer_that_needs_numbers_counts_as_adam() -> None:
    class Curious(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            self.param_groups[0]["params"][0].sum().item()

    weight = nn.Parameter(torch.zeros(1000))
    assert estimate_coming_state_bytes(Curious([weight], 0.1)) == 8000
    assert estimate_coming_state_bytes(torch.optim.Adafactor([weight])) == 8000


def test_shares_of_a_model() -> None:
    model = make_model()
    trained_bytes = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    shares = measure_shares(model, [torch.optim.SGD(model.parameters(), 0.1)], 2**40)
    assert (shares.gradient_bytes, shares.optimizer_bytes) == (trained_bytes, 0)
    assert 2**20 < shares.resident_bytes < 2**40
    assert shares.require_budget() == 2**40 - shares.temporary_bytes - shares.fixed_bytes
    model(torch.ones(2, 64)).sum().backward()
    assert measure_shares(model, [], 2**40).gradient_bytes == 0


def test_parameters_elsewhere_are_refused() -> None:
    with pytest.raises(PlanError, match="lie on meta"):
        measure_shares(make_model().to("meta"), [], 2**40)


@pytest.mark.parametrize("activation_bytes", [0, 1, 17, 2**20, 2**33 + 1])
def test_the_least_that_is_named_fits_and_a_byte_less_does_not(activation_bytes: int) -> None:
    shares = MemoryShares(100, resident_bytes=70, gradient_bytes=17, optimizer_bytes=13)
    least_bytes = shares.least_bytes(activation_bytes)

    def budget(memory_bytes: int) -> int:
        return MemoryShares(memory_bytes, 70, 17, 13).budget_bytes

    assert budget(least_bytes) >= activation_bytes
    assert budget(least_bytes - 1) < activation_bytes


def test_a_budget_that_is_too_small_is_told_as_memory() -> None:
    shares = MemoryShares(200, resident_bytes=70, gradient_bytes=17, optimizer_bytes=13)
    with pytest.raises(ProcessMemoryError) as caught, shares.explaining():
        raise OffloadBudgetError(170, 80, "somewhere")
    assert caught.value.least_bytes == 300
    with pytest.raises(OffloadBudgetError), shares.explaining():
        raise OffloadBudgetError(170, 80, "somewhere", refusal="the disk is full")
    with pytest.raises(ProcessMemoryError):
        MemoryShares(100, 90, 0, 0).require_budget()


def test_gradients_of_what_is_trained_besides_count() -> None:
    model, other = nn.Linear(64, 64), nn.Linear(64, 32)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], 0.1)
    shares = measure_shares(model, [optimizer], 2**30)
    assert shares.gradient_bytes == 65 * (64 + 32) * 4
    other(torch.ones(1, 64)).sum().backward()
    assert measure_shares(model, [optimizer], 2**30).gradient_bytes == 65 * 64 * 4
