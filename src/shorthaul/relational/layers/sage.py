"""GraphSAGE (Hamilton et al.) as a program with one relation, with PyG's parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import RelationalGraph
from shorthaul.relational.declarations import NodeFeature, Weight
from shorthaul.relational.language import linear, reduce_max, reduce_mean, reduce_sum
from shorthaul.relational.layer import layer
from shorthaul.relational.layers.graph_inputs import find_graph

_REDUCTIONS = {"mean": reduce_mean, "add": reduce_sum, "sum": reduce_sum, "max": reduce_max}


@layer
def sage(
    g: Any,
    x: NodeFeature("width"),
    neighbours: Weight("width", "out"),
    own: Weight("width", "out") = None,
    bias: Weight("out") = None,
    *,
    aggr: str,
) -> Any:
    """The neighbours' mean, and the node itself, each times a matrix."""
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.heard = _REDUCTIONS[aggr](e.source.x)
        n.out = linear(n.heard, neighbours)
        if own is not None:
            n.out = n.out + linear(n.x, own)
        if bias is not None:
            n.out = n.out + bias
    return n.out


class SAGEConv(nn.Module):
    """PyG's `SAGEConv` with aggr mean, add or max: `lin_l.weight`, `lin_l.bias`, `lin_r.weight`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggr: str = "mean",
        root_weight: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if aggr not in _REDUCTIONS:
            raise LayerArgumentError(f"aggr is {aggr!r}", f"it is one of {', '.join(_REDUCTIONS)}")
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.lin_l = nn.Linear(in_channels, out_channels, bias=bias)
        self.lin_r = nn.Linear(in_channels, out_channels, bias=False) if root_weight else None
        absent = ([] if root_weight else ["own"]) + ([] if bias else ["bias"])
        sizes = {"width": in_channels, "out": out_channels}
        self.function = sage.compile(sizes, {"aggr": aggr}, absent)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor | RelationalGraph) -> torch.Tensor:
        """Node features and edges."""
        graph = find_graph(edge_index, None, x.shape[0], 1)
        tensors = {"x": x, "neighbours": self.lin_l.weight.t()}
        if self.lin_r is not None:
            tensors["own"] = self.lin_r.weight.t()
        if self.lin_l.bias is not None:
            tensors["bias"] = self.lin_l.bias
        out: torch.Tensor = self.function(graph, tensors, training=self.training)
        return out

    def explain(self) -> str:
        """Every stage of the last compilation."""
        text: str = self.function.explain()
        return text
