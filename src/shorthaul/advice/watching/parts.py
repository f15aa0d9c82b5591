"""Amounts by module, as deep as matters: the largest are taken apart, and blocks that are alike are put together.

>>> sizes = {f"layers.{i}.{part}": size for i in range(4) for part, size in (("attention", 3), ("mlp", 5))}
>>> by_part(sizes | {"head": 1}, frozenset({"layers"}))
{'layers.*.attention': 12, 'layers.*.mlp': 20, 'head': 1}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import torch

_ROWS = 12
_WORTH = 0.05  # of the whole: what is less is not taken apart


def find_repeated(model: torch.nn.Module) -> frozenset[str]:
    """The names of containers whose children are of one class, so that their numbers tell little."""
    found = set()
    for name, module in model.named_modules():
        children = dict(module.named_children())
        is_numbered = len(children) > 1 and all(each.isdigit() for each in children)
        if is_numbered and len({type(each) for each in children.values()}) == 1:
            found.add(name)
    return frozenset(found)


def by_part(
    sizes: Mapping[str, int], repeated: Collection[str] = (), rows: int = _ROWS
) -> dict[str, int]:
    """Sums by the part of a model that they belong to.

    Args:
        sizes: Amounts by the names of modules.
        repeated: Containers, for the numbers of whose children a `*` stands (default none).
        rows: How many parts there may be at most, as long as the first level has no more.
    """
    folded: Counter[tuple[str, ...]] = Counter()
    for name, size in sizes.items():
        folded[_fold(name, repeated)] += size
    whole = sum(folded.values())
    chosen = _sums(folded, {parts[:1] for parts in folded})
    left = set(chosen)  # what may be taken apart yet
    while left:
        largest = max(left, key=lambda part: chosen[part])
        left.remove(largest)
        inner = {parts[: len(largest) + 1] for parts in folded if parts[: len(largest)] == largest}
        if inner == {largest} or chosen[largest] < _WORTH * whole:
            continue
        if len(chosen) - 1 + len(inner) > max(rows, len(chosen)):
            continue
        chosen = _sums(folded, set(chosen) - {largest} | inner)
        left |= inner - {largest}
    return {".".join(part): size for part, size in chosen.items() if size}


def _fold(name: str, repeated: Collection[str]) -> tuple[str, ...]:
    parts = name.split(".")
    return tuple(
        "*" if part.isdigit() and ".".join(parts[:depth]) in repeated else part
        for depth, part in enumerate(parts)
    )


def _sums(
    folded: Mapping[tuple[str, ...], int], parts: Collection[tuple[str, ...]]
) -> dict[tuple[str, ...], int]:
    """What belongs to each part, and to none that is deeper; in the order of the model."""
    sums: dict[tuple[str, ...], int] = {}
    for name, size in folded.items():
        depth = max(len(part) for part in parts if name[: len(part)] == part)
        sums[name[:depth]] = sums.get(name[:depth], 0) + size
    return sums
