"""Graph convolution as DGL has it: sums that are divided by degrees of either end, or of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.inputs.dgl_edges import count_edges, read_paired, require_incoming
from shorthaul.relational.inputs.graph import read_input
from shorthaul.relational.layers.homogeneous.base import (
    HomogeneousConv,
    read_edge_weight,
    read_pair,
)
from shorthaul.relational.layers.homogeneous.graph_conv import graph_conv

NORMS = ("both", "right", "left", "none")


class DGLGraphConv(HomogeneousConv):
    """DGL's `GraphConv` with a weight of its own: same arguments, parameters and numbers; compiled.

    >>> import torch, shorthaul as sh
    >>> convolve = sh.relational.DGLGraphConv(8, 4, allow_zero_in_degree=True)
    >>> convolve(torch.tensor([[0, 0, 1], [1, 2, 2]]), torch.randn(3, 8)).shape
    torch.Size([3, 4])

    Args:
        in_feats: Width of the features.
        out_feats: Width of the result.
        norm: What sums are divided by: `"both"` (default) by the roots of the degrees of both ends,
            `"right"` by the target's degree, `"left"` by the source's, `"none"` by nothing.
        bias: Whether the layer has a bias (default True).
        activation: Applied to the result; None (default) for none.
        allow_zero_in_degree: Whether nodes without incoming edges are no error (default False).
    """

    def __init__(
        self,
        in_feats: int,
        out_feats: int,
        norm: str = "both",
        bias: bool = True,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        allow_zero_in_degree: bool = False,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise LayerArgumentError(f"norm is {norm!r}", f"it is one of {', '.join(NORMS)}")
        self.widths = read_pair(in_feats)
        self.in_channels, self.out_channels, self.norm = in_feats, out_feats, norm
        self.activation, self.allows_zero_in_degree = activation, allow_zero_in_degree
        self.weight = nn.Parameter(torch.empty(in_feats, out_feats))
        self.bias = nn.Parameter(torch.empty(out_feats)) if bias else None
        sizes = {"width": in_feats, "target_width": in_feats, "out": out_feats}
        self.functions = {
            weighted: graph_conv.compile(
                sizes,
                {"aggr": "add"},
                {"other", "own", "bias"} | (set() if weighted else {"weight"}),
            )
            for weighted in (False, True)
        }
        self.function = self.functions[False]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """DGL's initial values: Glorot's, and zero for the bias."""
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        """Allow nodes without incoming edges, or not.

        Args:
            set_value: Whether they are allowed.
        """
        self.allows_zero_in_degree = set_value

    def forward(
        self,
        graph: Any,
        feat: Any,
        weight: torch.Tensor | None = None,
        edge_weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """New features of the nodes.

        Args:
            graph: A DGL graph or block, or `edge_index`.
            feat: Node features, or those of sources and of targets.
            weight: Must be None (default): the layer has its own.
            edge_weight: A number per edge; None (default) for ones.
        """
        stay_alone_after_fork()
        if weight is not None:
            raise LayerArgumentError(
                "a weight was given to a layer that has its own", "leave it out"
            )
        edges, sources, targets = read_paired(graph, feat)
        if not self.allows_zero_in_degree:
            require_incoming(edges, len(targets))
        if self.norm in ("left", "both"):
            sources = self._divide(sources, count_edges(edges, 0, len(sources)))
        given = read_input((sources, targets), edges, None, 1)
        tensors = {"x": given.sources, "neighbors": self.weight}
        factors = read_edge_weight(edge_weight, given.graph)
        if factors is not None:
            tensors["weight"] = factors
        out: torch.Tensor = self.functions[factors is not None](
            given.graph, tensors, training=self.training, num_targets=given.num_targets
        )
        if self.norm in ("right", "both"):
            out = self._divide(out, count_edges(edges, 1, len(targets)))
        if self.bias is not None:
            out = out + self.bias
        return out if self.activation is None else self.activation(out)

    def _divide(self, rows: torch.Tensor, degrees: torch.Tensor) -> torch.Tensor:
        power = -0.5 if self.norm == "both" else -1.0
        return rows * degrees.clamp(min=1).to(rows).pow(power).unsqueeze(1)
