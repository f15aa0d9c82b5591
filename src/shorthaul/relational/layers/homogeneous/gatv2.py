"""GATv2 (Brody, Alon and Yahav) as a program with one relation, with PyG's parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.compiled_layer import layer
from shorthaul.relational.frontend.declarations import (
    EdgeFeature,
    NodeFeature,
    TargetFeature,
    Weight,
)
from shorthaul.relational.frontend.language import dot, dropout, leaky_relu, linear, softmax, total
from shorthaul.relational.inputs.graph import glorot, read_edge_features
from shorthaul.relational.inputs.self_loops import (
    Fill,
    add_loops,
    edges_of,
    fill_loops,
    require_fill,
)
from shorthaul.relational.layers.homogeneous.base import (
    HomogeneousConv,
    read_pair,
    require_targets,
    start_linear,
)


@layer
def gatv2(
    g: Any,
    x: NodeFeature("width"),
    att: Weight("heads", "out"),
    left: Weight("width", "heads*out"),
    left_bias: Weight("heads*out") = None,
    other: TargetFeature("target_width") = None,
    right: Weight("target_width", "heads*out") = None,
    right_bias: Weight("heads*out") = None,
    edge_attr: EdgeFeature("edge_width") = None,
    lin_edge: Weight("edge_width", "heads*out") = None,
    res: Weight("target_width", "total") = None,
    bias: Weight("total") = None,
    *,
    options: GATv2Conv,
    returns_attention: bool,
) -> Any:
    """Attention whose score bends (leaky_relu) before it meets `att`, so that every target ranks anew.

    Where sources and targets are apart, targets are `other`.
    """
    heads, out = options.heads, options.out_channels

    def project(value: Any, weight: Any, shift: Any) -> Any:
        value = linear(value, weight)
        return value if shift is None else value + shift

    for n in g.nodes():
        n.left = project(n.x, left, left_bias)
    for n in g.target_nodes():
        own = n.x if other is None else n.other
        n.right = n.left if right is None else project(own, right, right_bias)
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
            n.out = n.out + linear(n.x if other is None else n.other, res)
        if bias is not None:
            n.out = n.out + bias
    return (n.out, e.alpha) if returns_attention else n.out


class GATv2Conv(HomogeneousConv):
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
        widths = self.widths = read_pair(in_channels)
        if share_weights and widths[0] != widths[1]:
            raise LayerArgumentError(
                f"sources have width {widths[0]} and targets {widths[1]}, which cannot share a matrix",
                "leave share_weights out",
            )
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
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
        self.trace_options()
        self.reset_parameters()

    def read_options(self) -> tuple[Any, ...]:
        """See the base class."""
        return self.dropout, self.negative_slope

    def make_functions(self) -> None:
        """See the base class."""
        # For one set of nodes or sources apart from targets, returning the attention or not.
        self.functions = {
            (is_apart, returns): self._compile(is_apart=is_apart, returns=returns)
            for is_apart in (False, True)
            for returns in (False, True)
        }
        self.alone: Any = None  # for models of many relations, when one asks
        self.function = self.functions[False, False]

    def _compile(self, *, is_apart: bool, returns: bool, alone: bool = False) -> Any:
        absent = set() if is_apart else {"other"}
        if self.share_weights and not is_apart:
            absent |= {"right", "right_bias"}
        if self.edge_dim is None:
            absent |= {"edge_attr", "lin_edge"}
        if self.res is None or alone:
            absent.add("res")
        if self.bias is None:
            absent |= {"left_bias", "right_bias"}
        if self.bias is None or alone:
            absent.add("bias")
        sizes = {"width": self.widths[0], "target_width": self.widths[1], "total": self.total}
        if not is_apart:
            sizes["target_width"] = sizes[
                "width"
            ]  # widths that differ are refused when it is called
        sizes |= {"out": self.out_channels, "heads": self.heads, "edge_width": self.edge_dim or 0}
        return gatv2.compile(sizes, {"options": self, "returns_attention": returns}, absent)

    def reset_parameters(self) -> None:
        """PyG's initial values: Glorot's, and zero for biases."""
        start_linear(self.lin_l, self.lin_r, self.lin_edge, self.res)
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
        stay_alone_after_fork()
        self.follow_options()
        is_apart = not isinstance(x, torch.Tensor)
        given = self.read(x, edge_index)
        targets = require_targets(given, x)
        features, graph = read_edge_features(edge_attr, self.edge_dim), given.graph
        if self.add_self_loops:
            loops = given.num_targets or given.sources.shape[0]
            if is_apart:
                loops = min(x[0].shape[0], x[1].shape[0])
            features = fill_loops(graph, features, loops, self.fill_value)
            graph = add_loops(graph, loops, given.num_targets)
        tensors = self.weights() | {"x": given.sources}
        if is_apart:
            tensors["other"] = targets
        elif self.share_weights:
            del tensors["right"]
            tensors.pop("right_bias", None)
        if features is not None:
            tensors["edge_attr"] = features
        if self.res is not None:
            tensors["res"] = self.res.weight.t()
        if self.bias is not None:
            tensors["bias"] = self.bias
        function = self.functions[is_apart, bool(return_attention_weights)]
        made = function(graph, tensors, training=self.training, num_targets=given.num_targets)
        if not return_attention_weights:
            return made
        return made[0], (edges_of(graph, given.sources.device).long(), made[1].squeeze(-1))

    def message_function(self, *, is_weighted: bool) -> Any:
        """See the base class; attributes of edges are the layer's, no weights."""
        if is_weighted is (self.edge_dim is None):
            return "its layer has edge_dim, or its edges have attributes, but not both"
        self.follow_options()
        if self.alone is None:
            self.alone = self._compile(is_apart=True, returns=False, alone=True)
        return self.alone

    def own_terms(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """See the base class."""
        return None if self.res is None else self.res.weight, self.bias

    def weights(self) -> dict[str, torch.Tensor]:
        """What the messages are made with, by the names of the program."""
        found = {"left": self.lin_l.weight.t(), "right": self.lin_r.weight.t(), "att": self.att[0]}
        if self.bias is not None:
            found |= {"left_bias": self.lin_l.bias, "right_bias": self.lin_r.bias}
        if self.lin_edge is not None:
            found["lin_edge"] = self.lin_edge.weight.t()
        return found
