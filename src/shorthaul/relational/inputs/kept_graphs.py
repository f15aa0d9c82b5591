"""Graphs that were made from a caller's objects, kept for as long as these live and are unchanged.

A model is called with the same edges again and again. What was indexed is found by the *identity* of
the objects, never by their contents: comparing contents would cost as much as indexing. A tensor that
was written to has another version, so it is indexed anew.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from shorthaul.graphs import RelationalGraph

Made = TypeVar("Made")

KEPT_GRAPHS = 16  # a model sees few full graphs; mini-batches come and go


class _Kept(NamedTuple):
    owners: tuple[weakref.ref[Any], ...]
    held: Any  # objects whose number in the key must not be given to others
    made: Any


_kept: OrderedDict[Any, _Kept] = OrderedDict()


def keep_graph(
    facts: tuple[Any, ...], owners: Sequence[Any], make: Callable[[], Made], held: Any = None
) -> Made:
    """What `make` makes from `owners`, made once for the same `facts` and unchanged owners.

    An owner that has no version (a tensor made in inference mode) could change unseen: nothing that
    is made from it is kept. A `RelationalGraph` that was changed is an error, as everywhere.
    """
    for each in owners:
        if isinstance(each, RelationalGraph):
            each.require_unchanged()
    if any(isinstance(each, torch.Tensor) and each.is_inference() for each in owners):
        return make()
    key = (facts, *map(_identify, owners), id(held))
    found = _kept.get(key)
    if found is not None and all(each() is not None for each in found.owners):
        _kept.move_to_end(key)
        kept: Made = found.made
        return kept
    made = make()
    _kept[key] = _Kept(tuple(weakref.ref(each) for each in owners), held, made)
    while len(_kept) > KEPT_GRAPHS:
        _kept.popitem(last=False)
    return made


def _identify(owner: Any) -> tuple[Any, ...]:
    if not isinstance(owner, torch.Tensor):
        return (id(owner),)
    address = owner.data_ptr() if owner.layout is torch.strided else 0
    return id(owner), address, tuple(owner.shape), owner._version
