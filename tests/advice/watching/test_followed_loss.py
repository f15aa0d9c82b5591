from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from shorthaul.advice.watching.dry import dry_step
from shorthaul.advice.watching.followed_loss import FollowedLoss, LossFollower

X, LABELS = torch.linspace(-1, 1, 24).reshape(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def follow(model: nn.Module, compute: Callable[[nn.Module, Any], torch.Tensor]) -> Any:
    output = model(X)
    with LossFollower(output) as follower:
        loss = compute(model, output)
        return loss, follower.find(loss)


def masked(model: nn.Module, output: torch.Tensor) -> torch.Tensor:
    changed = output * 2
    changed[LABELS == 1] = 0.25
    flat = changed.view(-1)
    flat.mul_(3)
    print("accuracy", (changed.argmax(-1) == LABELS).float().mean().item())
    return functional.cross_entropy(changed, LABELS) + (output.detach() * output).sum()


def with_penalty(model: nn.Module, output: torch.Tensor) -> torch.Tensor:
    return nn.CrossEntropyLoss()(output, LABELS) + 0.1 * sum(
        p.square().sum() for p in model.parameters()
    )  # type: ignore[return-value]


def of_two_calls(model: nn.Module, output: torch.Tensor) -> torch.Tensor:
    return (1 - functional.cosine_similarity(output, model(X.flip(0)))).mean()


@pytest.mark.parametrize("compute", [masked, with_penalty, of_two_calls])
def test_the_loss_and_its_gradients_are_the_same_again(compute):
    model = make_model()
    loss, found = follow(model, compute)
    assert isinstance(found, FollowedLoss)
    again = found(model(X))
    assert torch.equal(loss, again)
    expected = torch.autograd.grad(loss, tuple(model.parameters()))
    got = torch.autograd.grad(again, tuple(model.parameters()))
    for left, right in zip(expected, got, strict=True):
        assert torch.equal(left, right)


def test_another_output_has_another_loss():
    model = make_model()
    _, found = follow(model, with_penalty)
    with torch.no_grad():
        model[2].bias += 1.0
    assert torch.equal(found(model(X)), with_penalty(model, model(X)))


def test_it_can_be_played_through_without_data():
    model = make_model()
    _, found = follow(model, masked)
    assert dry_step(model, X, found).peak_bytes > 0


def test_a_gradient_that_backward_was_given_counts():
    model = make_model()
    output = model(X)
    with LossFollower(output) as follower:
        found = follower.find(output, torch.full_like(output, 2.0))
    assert found is not None
    assert torch.equal(found(model(X)), (2.0 * model(X)).sum())


def test_what_does_not_lead_back_to_the_output_is_not_known():
    model = make_model()
    output = model(X)
    other = model(X)
    with LossFollower(output) as follower:
        assert follower.find(other.sum()) is None
        detached = output.detach().requires_grad_()
        assert follower.find(detached.sum()) is None
        assert follower.find((other * output).sum()) is None  # whose other half has a graph already


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return 3 * x

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return 3 * gradients[0]


def test_a_function_of_the_users_own_is_followed_or_said_to_be_unknown():
    model = make_model()
    output = model(X)
    with LossFollower(output) as follower:
        loss = Triple.apply(output).sum()
        found = follower.find(loss)
    assert found is None or torch.equal(found(model(X)), loss)


def test_it_ends_below_other_modes():
    output = make_model()(X)
    follower = LossFollower(output).follow()
    with torch.device("cpu"):
        follower.stop()
        value = output * 2
    assert follower.find(value.sum()) is None
    follower.stop()  # on top again: other tests in this process shall not be looked on
