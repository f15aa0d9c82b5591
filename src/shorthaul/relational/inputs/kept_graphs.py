"""Graphs that were made from a caller's objects, kept for as long as these live and are unchanged.

A model is called with the same edges again and again. What was indexed is found by the *identity* of
the objects, never by their contents: comparing contents would cost as much as indexing. A tensor that
was written to has another version, so it is indexed anew.

Mini-batches come and go: what was made of objects that are gone goes at the next insertion. A model
that calls its relations one by one has a graph for each, so there is no limit but one of edges.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from shorthaul.graphs import RelationalGraph

Made = TypeVar("Made")

KEPT_GRAPHS = 16  # of any size
KEPT_EDGES = 2**26  # of all graphs where there are more; indexes take about 64 bytes per edge


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
        return _make(make)
    key = (facts, *map(_identify, owners), id(held))
    found = _kept.get(key)
    if found is not None and all(each() is not None for each in found.owners):
        _kept.move_to_end(key)
        kept: Made = found.made
        return kept
    made = _make(make)
    _kept[key] = _Kept(tuple(weakref.ref(each) for each in owners), held, made)
    _make_room()
    return made


def _make(make: Callable[[], Made]) -> Made:
    # Inside `torch.func` transforms every new tensor is a wrapper without memory, which ends with them.
    with torch._C._DisableFuncTorch():
        return make()


def _make_room() -> None:
    """Let go of what belongs to objects that are gone, then of what was not asked for the longest."""
    # By key: a graph may own the next entry, and must be gone when that is looked at.
    for key in list(_kept):
        found = _kept.get(key)  # another thread may have been here
        if found is not None and any(each() is None for each in found.owners):
            _kept.pop(key, None)
    edges = sum(_count_edges(each.made) for each in list(_kept.values()))
    while len(_kept) > KEPT_GRAPHS and edges > KEPT_EDGES:
        _, oldest = _kept.popitem(last=False)
        edges -= _count_edges(oldest.made)


def _count_edges(made: Any) -> int:
    graph = getattr(made, "graph", made)
    return graph.num_edges if isinstance(graph, RelationalGraph) else 0


def _identify(owner: Any) -> tuple[Any, ...]:
    if not isinstance(owner, torch.Tensor):
        return (id(owner),)
    address = owner.data_ptr() if owner.layout is torch.strided else 0
    return id(owner), address, tuple(owner.shape), owner._version
