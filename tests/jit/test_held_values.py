"""Kernels read values, whatever bits a tensor carries."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from shorthaul.errors import KernelArgumentError
from shorthaul.jit.held_values import held_values

NUMBERS = torch.tensor([1 + 2j, 3 - 1j])


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (NUMBERS.conj(), [1 - 2j, 3 + 1j]),
        (NUMBERS.conj().imag, [-2.0, 1.0]),
        (torch._neg_view(torch.ones(2)), [-1.0, -1.0]),
        (torch._efficientzerotensor(2), [0.0, 0.0]),
    ],
    ids=["conjugate", "negated part", "negated", "zeros without memory"],
)
def test_memory_holds_the_values(tensor, expected):
    held = held_values(tensor, "x")
    assert not any((held.is_conj(), held.is_neg(), held._is_zerotensor()))
    assert held.data_ptr()
    assert held.tolist() == expected


def test_an_ordinary_tensor_is_not_copied():
    tensor = torch.ones(2)
    assert held_values(tensor, "x") is tensor


def test_a_tensor_without_memory_is_refused():
    with FakeTensorMode():
        fake = torch.ones(2)
    with pytest.raises(KernelArgumentError, match="`x` must be a tensor with memory of its own"):
        held_values(fake, "x")
    with pytest.raises(KernelArgumentError, match=r"got one of a torch\.func transform .vmap"):
        torch.vmap(lambda each: held_values(each, "x"))(torch.ones(2, 3))
