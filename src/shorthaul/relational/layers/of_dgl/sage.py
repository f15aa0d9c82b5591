"""GraphSAGE as DGL has it: the mean of the neighbors, or the maximum of what a linear map makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.inputs.dgl_edges import read_paired
from shorthaul.relational.inputs.graph import read_input
from shorthaul.relational.layers.homogeneous.base import (
    HomogeneousConv,
    read_edge_weight,
    read_pair,
)
from shorthaul.relational.layers.homogeneous.graph_conv import graph_conv

AGGREGATORS = {"mean": "mean", "pool": "max"}
Function = Callable[[torch.Tensor], torch.Tensor]


class DGLSAGEConv(HomogeneousConv):
    """DGL's `SAGEConv` with aggregator mean or pool: same arguments, parameters and numbers; compiled.

    >>> import torch, shorthaul as sh
    >>> convolve = sh.relational.DGLSAGEConv(8, 4, "mean")
    >>> convolve(torch.tensor([[0, 0, 1], [1, 2, 2]]), torch.randn(3, 8)).shape
    torch.Size([3, 4])

    Args:
        in_feats: Width of the features, or (of sources, of targets).
        out_feats: Width of the result.
        aggregator_type: `"mean"` or `"pool"`.
        feat_drop: Share of the features that becomes zero in training (default 0).
        bias: Whether the layer has a bias (default True).
        norm: Applied to the result at last; None (default) for none.
        activation: Applied to the result; None (default) for none.
    """

    def __init__(
        self,
        in_feats: int | tuple[int, int],
        out_feats: int,
        aggregator_type: str,
        feat_drop: float = 0.0,
        bias: bool = True,
        norm: Function | None = None,
        activation: Function | None = None,
    ) -> None:
        super().__init__()
        if aggregator_type not in AGGREGATORS:
            raise LayerArgumentError(
                f"aggregator_type is {aggregator_type!r}", "it is 'mean' or 'pool'"
            )
        source, target = self.widths = read_pair(in_feats)
        self.in_channels, self.out_channels = in_feats, out_feats
        self.feat_drop = nn.Dropout(feat_drop)
        self.norm, self.activation = norm, activation
        if aggregator_type == "pool":
            self.fc_pool = nn.Linear(source, source)
        self.is_pooled = aggregator_type == "pool"
        self.fc_self = nn.Linear(target, out_feats, bias=bias)
        self.fc_neigh = nn.Linear(source, out_feats, bias=False)
        sizes = {"width": source, "target_width": target, "out": out_feats}
        options = {"aggr": AGGREGATORS[aggregator_type]}
        # Of messages alone: without weights of edges, and with them.
        self.functions = {
            weighted: graph_conv.compile(
                sizes, options, {"other", "own", "bias"} | (set() if weighted else {"weight"})
            )
            for weighted in (False, True)
        }
        self.function = self.functions[False]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """DGL's initial values: Glorot's for a ReLU."""
        gain = nn.init.calculate_gain("relu")
        for each in (self.fc_self, self.fc_neigh, *([self.fc_pool] if self.is_pooled else [])):
            nn.init.xavier_uniform_(each.weight, gain=gain)

    def forward(
        self, graph: Any, feat: Any, edge_weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """New features of the nodes.

        Args:
            graph: A DGL graph or block, or `edge_index`.
            feat: Node features, or those of sources and of targets.
            edge_weight: A number per edge; None (default) for ones.
        """
        stay_alone_after_fork()
        is_one = isinstance(feat, torch.Tensor)
        dropped = self.feat_drop(feat) if is_one else tuple(map(self.feat_drop, feat))
        edges, sources, targets = read_paired(graph, dropped)
        heard = self.fc_pool(sources).relu() if self.is_pooled else sources
        given = read_input((heard, targets), edges, None, 1)
        tensors = {"x": given.sources, "neighbors": self.fc_neigh.weight.t()}
        weight = read_edge_weight(edge_weight, given.graph)
        if weight is not None:
            tensors["weight"] = weight
        out: torch.Tensor = self.functions[weight is not None](
            given.graph, tensors, training=self.training, num_targets=given.num_targets
        )
        out = self.fc_self(targets) + out
        if self.activation is not None:
            out = self.activation(out)
        return out if self.norm is None else self.norm(out)
