"""Tensors whose values lie in memory as they are: what a kernel that is given an address reads.

>>> numbers = torch.tensor([1 + 2j, 3 - 1j])
>>> numbers.conj().imag.is_neg(), held_values(numbers.conj().imag, "numbers")
(True, tensor([-2.,  1.]))
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor

from shorthaul.errors import KernelArgumentError


def held_values(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """`tensor` itself, or a copy where its memory holds something else than its values.

    What has no memory at all, and is called `name` in the error, is refused.
    """
    if not tensor._is_zerotensor():
        require_memory(tensor, name)
    return resolve(tensor)


def resolve(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` without the bits that say that its values are others than its memory holds.

    A conjugate or negated view has the memory of what it is a view of, and a bit that says what to
    do with it; torch's own zero tensors, which come as gradients, have no memory.
    """
    if tensor._is_zerotensor():
        return tensor.clone()
    return tensor.resolve_conj().resolve_neg()


def require_memory(tensor: torch.Tensor, name: str) -> None:
    """Refuse what has values and no memory: fake tensors, and those of `torch.func`'s transforms."""
    is_there = type(tensor) is torch.Tensor or not isinstance(tensor, FakeTensor)
    try:
        is_there = is_there and bool(tensor.data_ptr() or not tensor.numel())
    except RuntimeError:
        is_there = False
    if not is_there:
        raise KernelArgumentError(
            "rows", name, "a tensor with memory of its own", describe_without_memory(tensor)
        )


def describe_without_memory(tensor: torch.Tensor) -> str:
    """The words of an error for a tensor that has values and no memory, and what helps where that is known."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return (
            "one of a torch.func transform (vmap, grad, jvp): call it outside, or on plain tensors"
        )
    return f"a {type(tensor).__name__} without"
