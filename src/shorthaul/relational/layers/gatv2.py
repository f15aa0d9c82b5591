"""GATv2 (Brody, Alon and Yahav) as a program with one relation, with PyG's parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from shorthaul.errors import LayerArgumentError
from shorthaul.relational.compiled_layer import layer
from shorthaul.relational.frontend.declarations import EdgeFeature, NodeFeature, Weight
from shorthaul.relational.frontend.language import dot, dropout, leaky_relu, linear, softmax, total
from shorthaul.relational.inputs.graph import (
    LayerInput,
    glorot,
    read_edge_features,
    read_input,
    require_widths,
)
from shorthaul.relational.inputs.self_loops import (
    Fill,
    add_loops,
    edges_of,
    replace_loop_features,
    require_fill,
)


@layer
def gatv2(
    g: Any,
    x: NodeFeature("width"),
    att: Weight("heads", "out"),
    other: NodeFeature("width") = None,
    left: Weight("width", "heads*out") = None,
    left_bias: Weight("heads*out") = None,
    right: Weight("width", "heads*out") = None,
    right_bias: Weight("heads*out") = None,
    edge_attr: EdgeFeature("edge_width") = None,
    lin_edge: Weight("edge_width", "heads*out") = None,
    res: Weight("width", "total") = None,
    bias: Weight("total") = None,
    *,
    options: GATv2Conv,
    is_apart: bool,
    returns_attention: bool,
) -> Any:
    """Attention whose score bends (leaky_relu) before it meets `att`, so that every target ranks anew.

    Where sources and targets are apart, they come projected: sources as `x`, targets as `other`.
    """
    heads, out = options.heads, options.out_channels

    def project(value: Any, weight: Any, shift: Any) -> Any:
        if weight is not None:
            value = linear(value, weight)
        return value if shift is None else value + shift

    for n in g.nodes():
        n.left = project(n.x, left, left_bias)
    for n in g.target_nodes():
        if is_apart:
            n.right = n.other
        else:
            n.right = n.left if right is None else project(n.x, right, right_bias)
    for e in g.edges():
        met = e.source.left + e.target.right
        if lin_edge is not None:
            met = met + linear(e.edge_attr, lin_edge)
        score = dot(leaky_relu(met, options.negative_slope).reshape(heads, out), att)
        e.alpha = softmax(score)
        if options.dropout > 0:
            e.alpha = dropout(e.alpha, options.dropout)
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.heard += e.alpha * e.source.left.reshape(heads, out)
        n.out = n.heard.reshape(-1) if options.concat else (total(n.heard, 0) / heads).reshape(-1)
        if res is not None:
            n.out = n.out + linear(n.x, res)
        if bias is not None:
            n.out = n.out + bias
    return (n.out, e.alpha) if returns_attention else n.out


class GATv2Conv(nn.Module):
    """PyG's `GATv2Conv`: same arguments, same parameters, same numbers; compiled.

    Sources and targets may be apart: `in_channels=(source width, target width)` and a pair of
    features.

    >>> import torch, shorthaul as sh
    >>> attend = sh.relational.GATv2Conv(8, 4, heads=2)
    >>> attend(torch.randn(3, 8), torch.tensor([[0, 0, 1], [1, 2, 2]])).shape
    torch.Size([3, 8])

    Args:
        in_channels: Width of the features, or (of sources, of targets).
        out_channels: Width of each head.
        heads: Heads of attention (default 1).
        concat: Whether heads are concatenated; False averages them (default True).
        negative_slope: Of the leaky ReLU (default 0.2).
        dropout: Share of the attention that becomes zero in training (default 0).
        add_self_loops: Whether each node hears from itself (default True).
        edge_dim: Width of edge features; None (default) for none.
        fill_value: Edge features of those loops: a number, a tensor, or how they are made of the
            node's other edges (default `"mean"`).
        bias: Whether the layer has a bias (default True).
        share_weights: Whether sources and targets have the same weights (default False).
        residual: Whether a linear map of the target is added to its result (default False).
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: Fill = "mean",
        bias: bool = True,
        share_weights: bool = False,
        residual: bool = False,
    ) -> None:
        super().__init__()
        require_fill(fill_value)
        widths = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        require_widths(in_channels)
        if share_weights and widths[0] != widths[1]:
            raise LayerArgumentError(
                f"sources have width {widths[0]} and targets {widths[1]}, which cannot share a matrix",
                "leave share_weights out",
            )
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.widths = tuple(widths)
        self.concat, self.negative_slope, self.dropout = concat, negative_slope, dropout
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        self.share_weights, self.residual = share_weights, residual
        wide = heads * out_channels
        self.total = wide if concat else out_channels
        self.lin_l = nn.Linear(widths[0], wide, bias=bias)
        self.lin_r = self.lin_l if share_weights else nn.Linear(widths[1], wide, bias=bias)
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None if edge_dim is None else nn.Linear(edge_dim, wide, bias=False)
        self.res = nn.Linear(widths[1], self.total, bias=False) if residual else None
        self.bias = nn.Parameter(torch.empty(self.total)) if bias else None
        # For one set of nodes or sources apart from targets, returning the attention or not.
        self.functions = {
            (is_apart, returns): self._compile(is_apart, returns)
            for is_apart in (False, True)
            for returns in (False, True)
        }
        self.function = self.functions[False, False]
        self.reset_parameters()

    def _compile(self, is_apart: bool, returns_attention: bool) -> Any:
        absent = {"left", "left_bias", "right", "right_bias", "res"} if is_apart else {"other"}
        if self.share_weights:
            absent |= {"right", "right_bias"}
        if self.edge_dim is None:
            absent |= {"edge_attr", "lin_edge"}
        if self.res is None:
            absent.add("res")
        if self.bias is None:
            absent |= {"left_bias", "right_bias", "bias"}
        width = self.heads * self.out_channels if is_apart else self.widths[0]
        sizes = {"width": width, "out": self.out_channels, "heads": self.heads}
        sizes |= {"total": self.total, "edge_width": self.edge_dim or 0}
        options = {"options": self, "is_apart": is_apart, "returns_attention": returns_attention}
        return gatv2.compile(sizes, options, absent)

    def reset_parameters(self) -> None:
        """PyG's initial values: Glorot's, and zero for biases."""
        for each in (self.lin_l, self.lin_r, self.lin_edge, self.res):
            if each is not None:
                glorot(each.weight)
                if each.bias is not None:
                    nn.init.zeros_(each.bias)
        glorot(self.att)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Any,
        edge_index: Any,
        edge_attr: torch.Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """New features of the nodes; with `return_attention_weights`, also edges and their attention.

        Args:
            x: Node features, or those of sources and of targets.
            edge_index: (2, edges), or a graph.
            edge_attr: (edges, edge_dim); None (default) for none.
            return_attention_weights: Whether the edges, loops included, and the attention of each
                are returned; None (default) for not.
        """
        is_apart = not isinstance(x, torch.Tensor)
        if is_apart and x[1] is None:
            raise LayerArgumentError("targets have no features", "pass (sources, targets)")
        given = read_input(x, edge_index, None, 1)
        features, graph = read_edge_features(edge_attr, self.edge_dim), given.graph
        if self.add_self_loops:
            loops = given.num_targets or given.sources.shape[0]
            if is_apart:
                loops = min(x[0].shape[0], x[1].shape[0])
            features = self._fill_loops(graph, features, loops)
            graph = add_loops(graph, loops, given.num_targets)
        tensors = self._project_apart(given) if is_apart else self._own_matrices(given.sources)
        tensors["att"] = self.att[0]
        if features is not None and self.lin_edge is not None:
            tensors |= {"edge_attr": features, "lin_edge": self.lin_edge.weight.t()}
        if self.bias is not None:
            tensors["bias"] = self.bias
        function = self.functions[is_apart, bool(return_attention_weights)]
        made = function(graph, tensors, training=self.training, num_targets=given.num_targets)
        out = made[0] if return_attention_weights else made
        if is_apart and self.res is not None:
            out = out + self.res(given.targets)
        if not return_attention_weights:
            return out
        return out, (edges_of(graph).long(), made[1].squeeze(-1))

    def _own_matrices(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.widths[0] != self.widths[1]:
            raise LayerArgumentError(
                f"the layer was made for sources and targets of widths {self.in_channels}",
                "pass a pair of features: (sources, targets)",
            )
        tensors = {"x": x, "left": self.lin_l.weight.t()}
        if not self.share_weights:
            tensors["right"] = self.lin_r.weight.t()
        if self.bias is not None:
            tensors["left_bias"] = self.lin_l.bias
            if not self.share_weights:
                tensors["right_bias"] = self.lin_r.bias
        if self.res is not None:
            tensors["res"] = self.res.weight.t()
        return tensors

    def _project_apart(self, given: LayerInput) -> dict[str, torch.Tensor]:
        sources, targets = self.lin_l(given.sources), self.lin_r(given.targets)
        missing = sources.shape[0] - targets.shape[0]
        return {"x": sources, "other": functional.pad(targets, (0, 0, 0, missing))}

    def _fill_loops(
        self, graph: Any, features: torch.Tensor | None, loops: int
    ) -> torch.Tensor | None:
        if features is None:
            return None
        if graph.num_edges != features.shape[0]:
            raise LayerArgumentError(
                f"edge_attr has {features.shape[0]:,} rows, but there are {graph.num_edges:,} edges",
                "give one row per edge",
            )
        return replace_loop_features(edges_of(graph), features, loops, self.fill_value)

    def explain(self, **options: Any) -> str:
        """Every stage; `graph`, `stage`, `machine` and `picture` as of `CompiledLayer.explain`."""
        text: str = self.function.explain(**options)
        return text

    def extra_repr(self) -> str:
        """Widths and heads."""
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"
