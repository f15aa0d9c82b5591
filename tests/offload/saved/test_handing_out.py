"""What unpacking hands out is neither the user's data nor what is handed out again."""

from __future__ import annotations

import pytest
import torch

from shorthaul.errors import InPlaceChangeError
from tests.offload.cases import leaf
from tests.offload.keep_all import small_offload

POLICIES = ["all", "keep", "small"]


class ReturnsSaved(torch.autograd.Function):
    """Its gradient of the weight is the saved input itself, or a view of it."""

    @staticmethod
    def forward(ctx, weight, data, is_view=False):
        ctx.save_for_backward(data)
        ctx.is_view = is_view
        return weight * data

    @staticmethod
    def backward(ctx, gradient):
        (data,) = ctx.saved_tensors
        return (data.view(-1).view(data.shape) if ctx.is_view else data), None, None


class ChangesSaved(torch.autograd.Function):
    """Its backward pass doubles the saved input in place."""

    @staticmethod
    def forward(ctx, data):
        ctx.save_for_backward(data)
        return data * 1

    @staticmethod
    def backward(ctx, gradient):
        (data,) = ctx.saved_tensors
        return gradient * data.mul_(2)


def open_offload(directory, policy):
    if policy == "small":
        return small_offload(directory, minimum_bytes="1MiB")
    offload = small_offload(directory)
    if policy == "keep":
        offload.store.offload = offload.store.keep
    return offload


def data_of(kind):
    return leaf(64, 64).detach() if kind == "data" else leaf(64, 64) * 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", ["data", "intermediate"])
@pytest.mark.parametrize("is_view", [False, True])
@pytest.mark.parametrize("is_alive", [True, False])
def test_a_saved_tensor_returned_as_a_gradient_is_a_copy(policy, kind, is_view, is_alive, tmp_path):
    weight, data = leaf(64, 64), data_of(kind)
    before = data.detach().clone()
    offload = open_offload(tmp_path, policy)
    with offload:
        loss = ReturnsSaved.apply(weight, data, is_view).sum()
        offload.store.wait_until_idle()
        if not is_alive:
            del data
        for _ in range(3):
            loss.backward(retain_graph=True)
    assert torch.equal(weight.grad, 3 * before)
    weight.grad.zero_()
    if is_alive:
        assert torch.equal(data, before)
    loss.backward()
    assert torch.equal(weight.grad, before)


@pytest.mark.parametrize("policy", POLICIES)
def test_saved_tensors_of_several_functions_are_not_added_up_in_place(policy, tmp_path):
    weight, data = leaf(64, 64), leaf(64, 64).detach()
    offload = open_offload(tmp_path, policy)
    with offload:
        inner = weight * 1
        loss = sum(ReturnsSaved.apply(inner, data).sum() for _ in range(3))
        offload.store.wait_until_idle()
        before = data.clone()
        del data
        for _ in range(2):
            loss.backward(retain_graph=True)
    assert torch.equal(weight.grad, 6 * before)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", ["data", "intermediate"])
@pytest.mark.parametrize("is_alive", [True, False])
def test_a_function_that_changes_what_it_saved_is_told_at_the_next_use(
    policy, kind, is_alive, tmp_path
):
    weight, data = leaf(64, 64), data_of(kind)
    offload = open_offload(tmp_path, policy)
    with offload:
        loss = ChangesSaved.apply(data * weight if kind == "intermediate" else data + weight).sum()
        offload.store.wait_until_idle()
        if not is_alive:
            del data
        loss.backward(retain_graph=True)
    with pytest.raises(InPlaceChangeError, match="is at version 1; expected version 0"):
        loss.backward()


def test_a_change_in_backward_is_seen_by_other_functions_that_saved_the_same(tmp_path):
    x = leaf(64, 64)
    offload = small_offload(tmp_path)
    with offload:
        h = x * 2
        first = h.sin().sum()
        second = ChangesSaved.apply(h).sum()
        offload.store.wait_until_idle()
        del h
        second.backward(retain_graph=True)
    with pytest.raises(InPlaceChangeError):
        first.backward()


def test_gradients_of_gradients_pass_through_copies(tmp_path):
    weight, x = leaf(64, 64), leaf(64, 64)

    def step():
        loss = ReturnsSaved.apply(weight, x * 3).sum()
        (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
        gradient.square().sum().backward()

    step()
    expected, x.grad = x.grad, None
    with small_offload(tmp_path):
        step()
    assert torch.equal(x.grad, expected)


@pytest.mark.parametrize("kind", ["conjugate", "negative"])
def test_marked_views_keep_their_marks(kind, tmp_path):
    x = torch.complex(leaf(64, 64).detach(), leaf(64, 64).detach() + 1).requires_grad_()

    def step():
        h = x * 2
        part = h.conj() if kind == "conjugate" else h.conj().imag
        return (part * part).abs().sum()

    step().backward()
    expected, x.grad = x.grad, None
    with small_offload(tmp_path):
        step().backward()
    assert torch.equal(x.grad, expected)
