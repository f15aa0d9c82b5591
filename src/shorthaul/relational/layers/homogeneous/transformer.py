"""Graph transformer (Shi et al.) as a program with one relation, with PyG's parameters."""

from __future__ import annotations

import math
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
from shorthaul.relational.frontend.language import (
    concat,
    dot,
    dropout,
    linear,
    sigmoid,
    softmax,
    total,
)
from shorthaul.relational.inputs.graph import read_edge_features
from shorthaul.relational.inputs.self_loops import edges_of
from shorthaul.relational.layers.homogeneous.base import (
    HomogeneousConv,
    read_pair,
    require_targets,
)


@layer
def transformer(
    g: Any,
    x: NodeFeature("width"),
    key: Weight("width", "heads*out"),
    query: Weight("target_width", "heads*out"),
    value: Weight("width", "heads*out"),
    key_bias: Weight("heads*out") = None,
    query_bias: Weight("heads*out") = None,
    value_bias: Weight("heads*out") = None,
    other: TargetFeature("target_width") = None,
    edge_attr: EdgeFeature("edge_width") = None,
    lin_edge: Weight("edge_width", "heads*out") = None,
    skip: Weight("target_width", "total") = None,
    skip_bias: Weight("total") = None,
    beta: Weight("3*total", 1) = None,
    *,
    options: TransformerConv,
    returns_attention: bool,
) -> Any:
    """Attention of queries to keys; the target itself is added, or mixed in by a gate (`beta`)."""
    heads, out = options.heads, options.out_channels

    def project(row: Any, weight: Any, shift: Any) -> Any:
        made = linear(row, weight)
        return made if shift is None else made + shift

    for n in g.nodes():
        n.key = project(n.x, key, key_bias).reshape(heads, out)
        n.value = project(n.x, value, value_bias).reshape(heads, out)
    for n in g.target_nodes():
        own = n.x if other is None else n.other
        n.query = project(own, query, query_bias).reshape(heads, out)
    for e in g.edges():
        e.key, e.value = e.source.key, e.source.value
        if lin_edge is not None:
            e.detail = linear(e.edge_attr, lin_edge).reshape(heads, out)
            e.key, e.value = e.key + e.detail, e.value + e.detail
        e.alpha = softmax(dot(e.target.query, e.key) / math.sqrt(out))
        e.kept = dropout(e.alpha, options.dropout) if options.dropout > 0 else e.alpha
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.heard += e.kept * e.value
        n.out = n.heard.reshape(-1) if options.concat else (total(n.heard, 0) / heads).reshape(-1)
        if skip is not None:
            own = project(n.x if other is None else n.other, skip, skip_bias)
            if beta is None:
                n.out = n.out + own
            else:
                gate = sigmoid(linear(concat(n.out, own, n.out - own), beta))
                n.out = gate * own + (1.0 - gate) * n.out
    return (n.out, e.alpha) if returns_attention else n.out


class TransformerConv(HomogeneousConv):
    """PyG's `TransformerConv`: same arguments, same parameters, same numbers; compiled.

    Sources and targets may be apart: `in_channels=(source width, target width)` and a pair of
    features.

    >>> import torch, shorthaul as sh
    >>> attend = sh.relational.TransformerConv(8, 4, heads=2)
    >>> attend(torch.randn(3, 8), torch.tensor([[0, 0, 1], [1, 2, 2]])).shape
    torch.Size([3, 8])

    Args:
        in_channels: Width of the features, or (of sources, of targets).
        out_channels: Width of each head.
        heads: Heads of attention (default 1).
        concat: Whether heads are concatenated; False averages them (default True).
        beta: Whether a gate mixes the target and what it hears (default False).
        dropout: Share of the attention that becomes zero in training (default 0).
        edge_dim: Width of edge features; None (default) for none.
        bias: Whether the maps have biases (default True).
        root_weight: Whether a linear map of the target is added to its result (default True).
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        bias: bool = True,
        root_weight: bool = True,
    ) -> None:
        super().__init__()
        self.widths = source, target = read_pair(in_channels)
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.beta, self.dropout = concat, beta and root_weight, dropout
        self.edge_dim, self.root_weight = edge_dim, root_weight
        wide = heads * out_channels
        self.total = wide if concat else out_channels
        self.lin_key = nn.Linear(source, wide, bias=bias)
        self.lin_query = nn.Linear(target, wide, bias=bias)
        self.lin_value = nn.Linear(source, wide, bias=bias)
        self.lin_edge = None if edge_dim is None else nn.Linear(edge_dim, wide, bias=False)
        self.lin_skip = nn.Linear(target, self.total, bias=bias)
        self.lin_beta = nn.Linear(3 * self.total, 1, bias=False) if self.beta else None
        self.trace_options()

    def read_options(self) -> tuple[Any, ...]:
        """See the base class."""
        return (self.dropout,)

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
        if self.edge_dim is None:
            absent |= {"edge_attr", "lin_edge"}
        if self.lin_key.bias is None:
            absent |= {"key_bias", "query_bias", "value_bias", "skip_bias"}
        if not self.root_weight or alone:
            absent |= {"skip", "skip_bias"}
        if not self.beta or alone:
            absent.add("beta")
        sizes = {"width": self.widths[0], "target_width": self.widths[1], "total": self.total}
        if not is_apart:
            sizes["target_width"] = sizes[
                "width"
            ]  # widths that differ are refused when it is called
        sizes |= {"out": self.out_channels, "heads": self.heads, "edge_width": self.edge_dim or 0}
        return transformer.compile(sizes, {"options": self, "returns_attention": returns}, absent)

    def reset_parameters(self) -> None:
        """PyG's initial values, which are PyTorch's."""
        for each in self.children():
            assert isinstance(each, nn.Linear)
            each.reset_parameters()

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
            return_attention_weights: True or False, as PyG has it, for the edges and the attention
                of each, before dropout; None (default) for none.
        """
        stay_alone_after_fork()
        self.follow_options()
        given = self.read(x, edge_index)
        is_apart, returns = not isinstance(x, torch.Tensor), return_attention_weights is not None
        tensors = self.weights() | {"x": given.sources}
        if is_apart:
            tensors["other"] = require_targets(given, x)
        features = read_edge_features(edge_attr, self.edge_dim)
        if features is not None:
            tensors["edge_attr"] = features
        if self.root_weight:
            tensors["skip"] = self.lin_skip.weight.t()
            if self.lin_skip.bias is not None:
                tensors["skip_bias"] = self.lin_skip.bias
        if self.lin_beta is not None:
            tensors["beta"] = self.lin_beta.weight.t()
        made = self.functions[is_apart, returns](
            given.graph, tensors, training=self.training, num_targets=given.num_targets
        )
        if not returns:
            return made
        return made[0], (edges_of(given.graph, given.sources.device).long(), made[1].squeeze(-1))

    def message_function(self, *, is_weighted: bool) -> Any:
        """See the base class; attributes of edges are the layer's, no weights."""
        if is_weighted is (self.edge_dim is None):
            return "its layer has edge_dim, or its edges have attributes, but not both"
        self.follow_options()
        if self.beta:
            return "its layer has a gate (beta)"
        if self.alone is None:
            self.alone = self._compile(is_apart=True, returns=False, alone=True)
        return self.alone

    def own_terms(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """See the base class."""
        if not self.root_weight:
            return None, None
        return self.lin_skip.weight, self.lin_skip.bias

    def weights(self) -> dict[str, torch.Tensor]:
        """What the messages are made with, by the names of the program."""
        found = {}
        for name, each in (
            ("key", self.lin_key),
            ("query", self.lin_query),
            ("value", self.lin_value),
        ):
            found[name] = each.weight.t()
            if each.bias is not None:
                found[f"{name}_bias"] = each.bias
        if self.lin_edge is not None:
            found["lin_edge"] = self.lin_edge.weight.t()
        return found
