"""Graph attention (Velickovic et al.) as a program with one relation, with PyG's parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

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
def gat(
    g: Any,
    x: NodeFeature("width"),
    lin: Weight("width", "heads*out"),
    att_src: Weight("heads", "out"),
    att_dst: Weight("heads", "out") = None,
    other: TargetFeature("target_width") = None,
    lin_dst: Weight("target_width", "heads*out") = None,
    edge_attr: EdgeFeature("edge_width") = None,
    lin_edge: Weight("edge_width", "heads*out") = None,
    att_edge: Weight("heads", "out") = None,
    res: Weight("target_width", "total") = None,
    weight: EdgeFeature() = None,
    bias: Weight("total") = None,
    *,
    options: Any,
    returns_attention: bool,
) -> Any:
    """Attention whose score is a sum: of the source, of the target, of the edge.

    Where sources and targets are apart, targets are `other`; without features they have no part in
    the score. What only the score wants of a row is multiplied by a matrix with a column per head.
    A weight per edge multiplies its attention.
    """
    heads, out = options.heads, options.out_channels

    def score(value: Any, weight: Any, by: Any) -> Any:
        """value W by, with the two weights multiplied first."""
        column = total(weight.reshape(-1, heads, out) * by, 2).reshape(-1, heads)
        return linear(value, column).reshape(heads, 1)

    for n in g.nodes():
        n.value = linear(n.x, lin).reshape(heads, out)
        n.offers = dot(n.value, att_src)
    if att_dst is not None:
        for n in g.target_nodes():
            n.asks = dot(n.value, att_dst) if other is None else score(n.other, lin_dst, att_dst)
    for e in g.edges():
        met = e.source.offers if att_dst is None else e.source.offers + e.target.asks
        if lin_edge is not None:
            met = met + score(e.edge_attr, lin_edge, att_edge)
        e.alpha = softmax(leaky_relu(met, options.negative_slope))
        if options.dropout > 0:
            e.alpha = dropout(e.alpha, options.dropout)
        if weight is not None:
            e.alpha = e.alpha * e.weight.reshape(1, 1)
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.heard += e.alpha * e.source.value
        n.out = n.heard.reshape(-1) if options.concat else (total(n.heard, 0) / heads).reshape(-1)
        if res is not None:
            n.out = n.out + linear(n.x if other is None else n.other, res)
        if bias is not None:
            n.out = n.out + bias
    return (n.out, e.alpha) if returns_attention else n.out


class GATConv(HomogeneousConv):
    """PyG's `GATConv`: same arguments, same parameters, same numbers; compiled.

    Sources and targets may be apart: `in_channels=(source width, target width)` and a pair of
    features.

    >>> import torch, shorthaul as sh
    >>> attend = sh.relational.GATConv(8, 4, heads=2)
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
        residual: bool = False,
    ) -> None:
        super().__init__()
        require_fill(fill_value)
        self.widths = read_pair(in_channels)
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.negative_slope, self.dropout = concat, negative_slope, dropout
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        self.residual = residual
        wide = heads * out_channels
        self.total = wide if concat else out_channels
        shared = isinstance(in_channels, int)
        self.lin = nn.Linear(self.widths[0], wide, bias=False) if shared else None
        self.lin_src = None if shared else nn.Linear(self.widths[0], wide, bias=False)
        self.lin_dst = None if shared else nn.Linear(self.widths[1], wide, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None if edge_dim is None else nn.Linear(edge_dim, wide, bias=False)
        self.att_edge = (
            None if edge_dim is None else nn.Parameter(torch.empty(1, heads, out_channels))
        )
        self.res = nn.Linear(self.widths[1], self.total, bias=False) if residual else None
        self.bias = nn.Parameter(torch.empty(self.total)) if bias else None
        self.trace_options()
        self.reset_parameters()

    def read_options(self) -> tuple[Any, ...]:
        """See the base class."""
        return self.dropout, self.negative_slope

    def make_functions(self) -> None:
        """See the base class."""
        # By how targets come (with sources, apart, without features), returning the attention or not.
        self.functions = {
            (targets, returns): self._compile(targets, returns=returns)
            for targets in ("joined", "apart", "none")
            for returns in (False, True)
        }
        self.alone: Any = None  # for models of many relations, when one asks
        self.function = self.functions["joined" if self.lin is not None else "apart", False]

    def _compile(self, targets: str, *, returns: bool, alone: bool = False) -> Any:
        absent = {"weight"} if targets == "apart" else {"weight", "other", "lin_dst"}
        if targets == "none":
            absent |= {"att_dst", "res"}
        if self.edge_dim is None:
            absent |= {"edge_attr", "lin_edge", "att_edge"}
        if self.res is None or alone:
            absent.add("res")
        if self.bias is None or alone:
            absent.add("bias")
        sizes = {"width": self.widths[0], "target_width": self.widths[1], "total": self.total}
        if targets != "apart":
            sizes["target_width"] = sizes[
                "width"
            ]  # widths that differ are refused when it is called
        sizes |= {"out": self.out_channels, "heads": self.heads, "edge_width": self.edge_dim or 0}
        return gat.compile(sizes, {"options": self, "returns_attention": returns}, absent)

    def reset_parameters(self) -> None:
        """PyG's initial values: Glorot's, and zero for the bias."""
        start_linear(self.lin, self.lin_src, self.lin_dst, self.lin_edge, self.res)
        for each in (self.att_src, self.att_dst, self.att_edge):
            if each is not None:
                glorot(each)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Any,
        edge_index: Any,
        edge_attr: torch.Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """New features of the nodes; with `return_attention_weights`, also edges and their attention.

        Args:
            x: Node features, or those of sources and of targets; None for targets that are known by
                nothing but their edges.
            edge_index: (2, edges), or a graph.
            edge_attr: (edges, edge_dim); None (default) for none.
            size: Numbers of sources and targets; None (default) reads them off `x`.
            return_attention_weights: Whether the edges, loops included, and the attention of each
                are returned; None (default) for not.
        """
        stay_alone_after_fork()
        self.follow_options()
        given = self.read(x, edge_index, size)
        is_pair = not isinstance(x, torch.Tensor)
        form = "apart" if self.lin is None or is_pair else "joined"
        features, graph = read_edge_features(edge_attr, self.edge_dim), given.graph
        if is_pair and given.targets is None:
            form, num_targets = "none", given.num_targets or len(x[0])
        else:
            targets = require_targets(given, x)
            num_targets = len(targets)
        if self.add_self_loops:
            loops = min(len(x[0] if is_pair else given.sources), num_targets)
            features = fill_loops(graph, features, loops, self.fill_value)
            graph = add_loops(graph, loops, given.num_targets)
        tensors = self.weights() | {"x": given.sources}
        if form == "apart":
            tensors["other"] = targets
        else:
            del tensors["lin_dst"]
        if form == "none":
            del tensors["att_dst"]
        if features is not None:
            tensors["edge_attr"] = features
        if self.res is not None and form != "none":
            tensors["res"] = self.res.weight.t()
        if self.bias is not None:
            tensors["bias"] = self.bias
        function = self.functions[form, bool(return_attention_weights)]
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
            self.alone = self._compile("apart", returns=False, alone=True)
        return self.alone

    def own_terms(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """See the base class."""
        return None if self.res is None else self.res.weight, self.bias

    def weights(self) -> dict[str, torch.Tensor]:
        """What the messages are made with, by the names of the program."""
        source, target = (
            (self.lin, self.lin) if self.lin is not None else (self.lin_src, self.lin_dst)
        )
        assert source is not None
        assert target is not None
        found = {"lin": source.weight.t(), "lin_dst": target.weight.t()}
        found |= {"att_src": self.att_src[0], "att_dst": self.att_dst[0]}
        if self.lin_edge is not None and self.att_edge is not None:
            found |= {"lin_edge": self.lin_edge.weight.t(), "att_edge": self.att_edge[0]}
        return found
