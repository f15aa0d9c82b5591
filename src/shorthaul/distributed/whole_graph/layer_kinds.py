"""What a layer may be given of other ranks, and which layers cannot be run for some targets at a time.

>>> from shorthaul.relational import RGATConv, RGCNConv
>>> takes_averages(RGCNConv(8, 4, 2)), takes_averages(RGATConv(8, 4, 2))
(True, False)
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.relational.layers import (
    CompGCNConv,
    DGLHGTConv,
    GCNConv,
    GINConv,
    GraphConv,
    HANConv,
    HeteroConv,
    RelGraphConv,
    RGCNConv,
    SAGEConv,
)

_SUMS = ("mean", "add", "sum")
# Kinds, and what they ask of nodes that are not here.
_NEED_MORE = {
    CompGCNConv: "divides by degrees of sources, which other ranks know",
    DGLHGTConv: "asks for the type of every node, also of other ranks'",
    HANConv: "weighs relations by a mean over all targets, which other ranks have",
}


def takes_averages(layer: nn.Module) -> bool:
    """Whether a layer adds up what a target hears through a relation, before anything else is done with it."""
    if type(layer) is HeteroConv:
        return all(map(takes_averages, layer.convs.children()))
    if type(layer) is RelGraphConv:
        return True
    if type(layer) is SAGEConv and layer.project:
        return False
    return type(layer) in (GINConv, GraphConv, RGCNConv, SAGEConv) and layer.aggr in _SUMS


def require_local(layer: nn.Module) -> None:
    """Raise if a target's result depends on more than the edges that it hears through, and their sources."""
    for each in _layers_of(layer):
        told = next((words for kind, words in _NEED_MORE.items() if isinstance(each, kind)), None)
        if isinstance(each, GCNConv) and each.normalize:
            told = "divides by degrees of sources, which other ranks know"
        if told is not None:
            raise LayerArgumentError(
                f"{type(each).__name__} {told}, so it does not run over parts",
                "take a layer that runs on sampled blocks, such as RGCNConv, RGATConv or SAGEConv",
            )
    if isinstance(layer, HeteroConv):
        for types, conv in zip(layer.edge_types, layer.convs.children(), strict=True):
            if types[0] != types[2] and getattr(conv, "add_self_loops", False):
                raise LayerArgumentError(
                    f"{type(conv).__name__} of {types} adds loops between nodes of two types, which parts "
                    "number otherwise",
                    "make it with add_self_loops=False",
                )


def _layers_of(layer: nn.Module) -> Iterator[nn.Module]:
    yield layer
    if isinstance(layer, HeteroConv):
        yield from layer.convs.children()
