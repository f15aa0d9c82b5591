"""Graph attention as DGL has it: heads apart in the result, a weight per edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.inputs.dgl_edges import read_paired, require_incoming
from shorthaul.relational.inputs.graph import read_input
from shorthaul.relational.layers.homogeneous.base import (
    HomogeneousConv,
    read_edge_weight,
    read_pair,
)
from shorthaul.relational.layers.homogeneous.gat import gat


class DGLGATConv(HomogeneousConv):
    """DGL's `GATConv`: same arguments, same parameters, same numbers; compiled.

    >>> import torch, shorthaul as sh
    >>> attend = sh.relational.DGLGATConv(8, 4, num_heads=2, allow_zero_in_degree=True)
    >>> attend(torch.tensor([[0, 0, 1], [1, 2, 2]]), torch.randn(3, 8)).shape
    torch.Size([3, 2, 4])

    Args:
        in_feats: Width of the features, or (of sources, of targets).
        out_feats: Width of each head.
        num_heads: Heads of attention.
        feat_drop: Share of the features that becomes zero in training (default 0).
        attn_drop: Share of the attention that becomes zero in training (default 0).
        negative_slope: Of the leaky ReLU (default 0.2).
        residual: Whether the target, or a linear map of it, is added to its result (default False).
        activation: Applied to the result; None (default) for none.
        allow_zero_in_degree: Whether nodes without incoming edges are no error (default False).
        bias: Whether the layer has a bias (default True).
    """

    concat = True  # as the program asks: heads stay apart

    def __init__(
        self,
        in_feats: int | tuple[int, int],
        out_feats: int,
        num_heads: int,
        feat_drop: float = 0.0,
        attn_drop: float = 0.0,
        negative_slope: float = 0.2,
        residual: bool = False,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        allow_zero_in_degree: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        source, target = self.widths = read_pair(in_feats)
        self.in_channels, self.out_channels, self.heads = in_feats, out_feats, num_heads
        wide = num_heads * out_feats
        self.is_shared = isinstance(in_feats, int)
        if self.is_shared:
            self.fc = nn.Linear(source, wide, bias=False)
        else:
            self.fc_src = nn.Linear(source, wide, bias=False)
            self.fc_dst = nn.Linear(target, wide, bias=False)
        self.attn_l = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.attn_r = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.feat_drop, self.attn_drop = nn.Dropout(feat_drop), nn.Dropout(attn_drop)
        self.leaky_relu = nn.LeakyReLU(negative_slope)
        self.res_fc: nn.Module | None = None
        if residual:
            mapped = nn.Linear(target, wide, bias=bias)
            self.res_fc = mapped if target != wide else nn.Identity()
        has_bias = bias and not isinstance(self.res_fc, nn.Linear)
        self.bias = nn.Parameter(torch.empty(wide)) if has_bias else None
        self.activation, self.allows_zero_in_degree = activation, allow_zero_in_degree
        self.trace_options()
        self.reset_parameters()

    @property
    def dropout(self) -> float:
        """Of the attention, as it is now."""
        return self.attn_drop.p

    @property
    def negative_slope(self) -> float:
        """Of the leaky ReLU, as it is now."""
        return self.leaky_relu.negative_slope

    def read_options(self) -> tuple[Any, ...]:
        """See the base class."""
        return self.dropout, self.negative_slope

    def make_functions(self) -> None:
        """See the base class."""
        # With weights of edges or not, returning the attention or not.
        self.functions = {
            (weighted, returns): self._compile(weighted=weighted, returns=returns)
            for weighted in (False, True)
            for returns in (False, True)
        }
        self.function = self.functions[False, False]

    def _compile(self, *, weighted: bool, returns: bool) -> Any:
        absent = {"edge_attr", "lin_edge", "att_edge", "res"}
        absent |= set() if weighted else {"weight"}
        absent |= {"bias"} if self.bias is None else set()
        sizes = {"width": self.widths[0], "target_width": self.widths[1], "edge_width": 0}
        sizes |= {"out": self.out_channels, "heads": self.heads}
        sizes["total"] = self.heads * self.out_channels
        return gat.compile(sizes, {"options": self, "returns_attention": returns}, absent)

    def reset_parameters(self) -> None:
        """DGL's initial values: Glorot's for a ReLU, and zero for the bias."""
        gain = nn.init.calculate_gain("relu")
        maps = [self.fc] if self.is_shared else [self.fc_src, self.fc_dst]
        if isinstance(self.res_fc, nn.Linear):
            maps.append(self.res_fc)
        for each in (*(one.weight for one in maps), self.attn_l, self.attn_r):
            nn.init.xavier_normal_(each, gain=gain)
        for bias in (self.bias, getattr(self.res_fc, "bias", None)):
            if bias is not None:
                nn.init.zeros_(bias)

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
        edge_weight: torch.Tensor | None = None,
        get_attention: bool = False,
    ) -> Any:
        """New features of the nodes, (nodes, heads, out); with `get_attention`, also that of each edge.

        Args:
            graph: A DGL graph or block, or `edge_index`.
            feat: Node features, or those of sources and of targets.
            edge_weight: What the attention of each edge is multiplied by; None (default) for ones.
            get_attention: Whether the attention of each edge is returned (default False).
        """
        stay_alone_after_fork()
        self.follow_options()
        is_one = isinstance(feat, torch.Tensor)
        dropped = self.feat_drop(feat) if is_one else tuple(map(self.feat_drop, feat))
        edges, sources, targets = read_paired(graph, dropped)
        if not self.allows_zero_in_degree:
            require_incoming(edges, len(targets))
        given = read_input((sources, targets), edges, None, 1)
        source, target = (self.fc, self.fc) if self.is_shared else (self.fc_src, self.fc_dst)
        tensors = {"x": given.sources, "other": targets}
        tensors |= {"lin": source.weight.t(), "lin_dst": target.weight.t()}
        tensors |= {"att_src": self.attn_l[0], "att_dst": self.attn_r[0]}
        weight = read_edge_weight(edge_weight, given.graph)
        if weight is not None:
            tensors["weight"] = weight
        if self.bias is not None:
            tensors["bias"] = self.bias
        made = self.functions[weight is not None, bool(get_attention)](
            given.graph, tensors, training=self.training, num_targets=given.num_targets
        )
        out = (made[0] if get_attention else made).view(-1, self.heads, self.out_channels)
        if self.res_fc is not None:
            out = out + self.res_fc(targets).view(len(targets), -1, self.out_channels)
        if self.activation is not None:
            out = self.activation(out)
        return (out, made[1]) if get_attention else out
