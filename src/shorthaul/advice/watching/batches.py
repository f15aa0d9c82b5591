"""A batch cut into micro-batches.

>>> import torch
>>> [len(each) for each in split_batch(torch.ones(6, 2), 3)]
[2, 2, 2]
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from shorthaul.errors import PlanError


def count_samples(batch: Any) -> int | None:
    """The first dimension that all of a batch's tensors have in common; None where there is none."""
    tensors = [each for each in pytree.tree_leaves(_plain(batch)) if isinstance(each, torch.Tensor)]
    sizes = {each.shape[0] if each.dim() else 1 for each in tensors}
    return sizes.pop() if len(sizes) == 1 else None


def split_batch(batch: Any, parts: int) -> list[Any]:
    """Equal parts of a batch along its first dimension.

    Args:
        batch: A tensor, a tuple of positional or a mapping of named arguments.
        parts: How many.
    """
    samples = count_samples(batch)
    if parts == 1:
        return [batch]
    if samples is None or samples % parts:
        found = "no common first dimension" if samples is None else f"{samples:,} samples"
        raise PlanError(f"a batch with {found} cannot be cut into {parts:,} equal parts.")
    leaves, structure = pytree.tree_flatten(_plain(batch))
    cut = [
        each.chunk(parts) if isinstance(each, torch.Tensor) else [each] * parts for each in leaves
    ]
    return [pytree.tree_unflatten(list(part), structure) for part in zip(*cut, strict=True)]


def _plain(batch: Any) -> Any:
    # Mappings of others, such as transformers' BatchEncoding, are no trees that pytree knows.
    if hasattr(batch, "keys") and not isinstance(batch, dict):
        return {name: batch[name] for name in batch.keys()}  # noqa: SIM118
    return batch
