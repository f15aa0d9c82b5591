from __future__ import annotations

import pytest
import torch
from torch import nn

from shorthaul.advice.watching.dry import dry_step, units_by_order
from shorthaul.advice.watching.observation import ACTIVATIONS, GRADIENTS, Observer, Owner, by_prefix


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 256), nn.Sigmoid(), nn.Linear(256, 256), nn.Sigmoid())


def observe(model: nn.Module, x: torch.Tensor):
    with Observer(model) as observer:
        model(x).sum().backward()
    return observer.finish()


def test_what_is_saved_is_counted_by_the_module_that_made_it():
    memory = observe(make_model(), torch.randn(512, 256))
    size = 512 * 256 * 4
    # Of each sigmoid the result is saved, of the second layer the input, which is the first's result.
    peaks = memory.at_peak(ACTIVATIONS)
    assert peaks == {Owner(ACTIVATIONS, "1"): size, Owner(ACTIVATIONS, "3"): size}
    assert memory.peak_of(ACTIVATIONS) == 2 * size
    assert memory.peak_of(GRADIENTS) == 2 * (256 * 256 + 256) * 4


def test_everything_but_gradients_is_freed_at_the_end():
    memory = observe(make_model(), torch.randn(64, 256))
    *_, (_, last) = memory.held()
    left = {owner.kind: held for owner, held in zip(memory.owners, last, strict=True) if held}
    assert set(left) == {GRADIENTS}


def test_a_model_that_keeps_a_result_shows_in_what_is_held():
    kept = []

    class Keeps(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept.append(x * 2)
            return x.sin()

    x = torch.randn(1000, requires_grad=True)
    memory = observe(Keeps(), x)
    *_, (_, last) = memory.held()
    assert sum(last) >= 4000


def test_hooks_are_gone_after_a_failure():
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("forward fails")

    model = nn.Sequential(Fails())
    with pytest.raises(KeyError):
        observe(model, torch.ones(2))
    assert not model._forward_hooks
    assert not model[0]._forward_pre_hooks


def test_a_step_without_data_holds_the_same_bytes():
    model, x = make_model(), torch.randn(512, 256)
    state = torch.get_rng_state()
    dry = dry_step(model, x)
    assert torch.equal(torch.get_rng_state(), state)
    real = observe(model, x)
    assert dry.peak_bytes == real.peak_bytes
    assert dry.at_peak() == real.at_peak()
    units = units_by_order(dry)
    assert sorted(each.size_bytes for each in units) == [512 * 256 * 4] * 2


def test_a_model_without_memory_is_played_through():
    with torch.device("meta"):
        model = make_model()
    on_meta = dry_step(model, torch.empty(512, 256, device="meta"))
    assert on_meta.peak_bytes == dry_step(make_model(), torch.randn(512, 256)).peak_bytes
    assert all(each.device.type == "meta" and each.grad is None for each in model.parameters())


def test_names_are_as_deep_as_there_is_room():
    sizes = {"a.0.x": 1, "a.1.x": 2, "b.y": 4}
    assert by_prefix(sizes, limit=2) == {"a": 3, "b": 4}
    assert by_prefix(sizes, limit=3) == {"a.0.x": 1, "a.1.x": 2, "b.y": 4}
