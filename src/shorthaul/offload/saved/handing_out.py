"""Saved tensors that a function written by others is given, and may return or change.

PyTorch's own operators only read what they saved. A custom `Function` may return a saved tensor as its
gradient; autograd takes a gradient that nobody else refers to for `.grad` itself, and adds to it in
place. So what it returns of memory that is handed out again, or is the user's, is copied. A change in
place needs nothing here: what is handed out has the version counter of the tensor that was saved.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

_KEY = "shorthaul: storages handed out"
# C++ functions that PyTorch has no name for: those of extensions.
_NAMELESS = "CppFunction"


def note_handed_out(tensor: torch.Tensor) -> None:
    """`tensor` is about to be given to the function that autograd is running, if it runs one."""
    node = torch._C._current_autograd_node()
    if node is None or not _is_by_others(node):
        return
    metadata: dict[str, set[int]] = node.metadata  # type: ignore[assignment]
    storages = metadata.get(_KEY)
    if storages is None:
        storages = metadata[_KEY] = set()
        node.register_hook(functools.partial(_separate, storages))
    address = _storage_of(tensor)
    if address is not None:
        storages.add(address)


def _is_by_others(node: Any) -> bool:
    is_python = isinstance(node, torch.autograd.function.BackwardCFunction)
    return is_python or type(node).__name__ == _NAMELESS


def _separate(
    storages: set[int],
    gradients: Sequence[torch.Tensor | None],
    _: Sequence[torch.Tensor | None],
) -> tuple[torch.Tensor | None, ...] | None:
    """A function returned `gradients`: those in memory that was handed out to it become copies."""
    is_handed_out = [each is not None and _storage_of(each) in storages for each in gradients]
    storages.clear()  # an address may be another storage's by the next time
    if not any(is_handed_out):
        return None
    pairs = zip(gradients, is_handed_out, strict=True)
    return tuple(each.clone() if each is not None and ours else each for each, ours in pairs)


def _storage_of(tensor: torch.Tensor) -> int | None:
    """The address of a plain tensor's storage."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # a subclass without memory of its own
        return None
