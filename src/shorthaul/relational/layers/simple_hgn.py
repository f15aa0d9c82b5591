"""Simple-HGN (Lv et al.): graph attention that knows the relation of an edge, with the authors' parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import RelationalGraph
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.compiled_layer import layer
from shorthaul.relational.frontend.declarations import EdgeFeature, NodeFeature, Weight
from shorthaul.relational.frontend.language import dot, dropout, leaky_relu, linear, softmax
from shorthaul.relational.inputs.graph import read_input, require_one_set
from shorthaul.relational.layers.options import TracedLayer


@layer
def simple_hgn(
    g: Any,
    x: NodeFeature("width"),
    fc: Weight("width", "heads*out"),
    attn_l: Weight("heads", "out"),
    attn_r: Weight("heads", "out"),
    edge_emb: Weight("relation", "edge_width"),
    fc_e: Weight("edge_width", "heads*edge_width"),
    attn_e: Weight("heads", "edge_width"),
    last: EdgeFeature("heads", 1) = None,
    res_fc: Weight("width", "heads*out") = None,
    bias: Weight("heads", "out") = None,
    *,
    options: SimpleHGN,
    has_last: bool,
    returns_attention: bool,
) -> Any:
    """A relation's embedding has its say in the logit; `last` is the attention of the layer before."""
    heads, out = options.heads, options.out_channels
    # Per relation, not per edge: the embedding, its projection and their inner product.
    of_relation = dot(linear(edge_emb, fc_e).reshape(heads, -1), attn_e)
    for n in g.nodes():
        n.hidden = dropout(n.x, options.feature_dropout) if options.feature_dropout > 0 else n.x
        n.value = linear(n.hidden, fc).reshape(heads, out)
        n.key = dot(n.value, attn_l)
    for n in g.target_nodes():
        n.query = dot(n.value, attn_r)
    for e in g.edges():
        logit = leaky_relu(e.source.key + e.target.query + of_relation, options.negative_slope)
        e.alpha = softmax(logit)
        if options.dropout > 0:
            e.alpha = dropout(e.alpha, options.dropout)
        if has_last:
            e.alpha = e.alpha * (1.0 - options.beta) + e.last * options.beta
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += e.alpha * e.source.value
        if res_fc is not None:
            n.out = n.out + linear(n.hidden, res_fc).reshape(heads, out)
        elif options.residual:
            n.out = n.out + n.hidden.reshape(1, out)  # the same for every head
        if bias is not None:
            n.out = n.out + bias
        n.out = n.out.reshape(-1)
    return (n.out, e.alpha) if returns_attention else n.out


class SimpleHGN(TracedLayer):
    """One layer of Simple-HGN, with the parameters of its authors' code; compiled.

    The next layer may mix this one's attention into its own, a share of `beta`:

    >>> import torch, shorthaul as sh
    >>> first = sh.relational.SimpleHGN(8, 4, num_relations=2, edge_dim=4, heads=2)
    >>> second = sh.relational.SimpleHGN(8, 4, 2, edge_dim=4, heads=2, residual=True, beta=0.05)
    >>> edge_index, edge_type = torch.tensor([[0, 0, 1], [1, 2, 2]]), torch.tensor([0, 1, 0])
    >>> hidden, attention = first(
    ...     torch.randn(3, 8), edge_index, edge_type, return_attention_weights=True
    ... )
    >>> second(hidden, edge_index, edge_type, attention).shape
    torch.Size([3, 8])

    Args:
        in_channels: Width of the features.
        out_channels: Width of each head.
        num_relations: Relations.
        edge_dim: Width of the relations' embeddings (default 64).
        heads: Heads of attention (default 1).
        feature_dropout: Share of the features that become zero in training (default 0).
        dropout: Share of the attention that becomes zero in training (default 0).
        negative_slope: Of the leaky ReLU (default 0.2).
        residual: Whether a linear map of the target is added to its result (default False).
        activation: Applied to the result; None (default) for none.
        bias: Whether the layer has a bias (default False).
        beta: Share of the last layer's attention in this one's (default 0).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_relations: int,
        edge_dim: int = 64,
        heads: int = 1,
        feature_dropout: float = 0.0,
        dropout: float = 0.0,
        negative_slope: float = 0.2,
        residual: bool = False,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        bias: bool = False,
        beta: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0 <= beta <= 1:
            raise LayerArgumentError(
                f"beta is {beta}", "it is a share: from 0 (this layer's attention) to 1 (the last)"
            )
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.num_relations, self.edge_dim = num_relations, edge_dim
        self.feature_dropout, self.dropout = feature_dropout, dropout
        self.negative_slope, self.residual, self.beta = negative_slope, residual, beta
        self.activation = activation
        wide = heads * out_channels
        self.edge_emb = nn.Embedding(num_relations, edge_dim)
        self.fc = nn.Linear(in_channels, wide, bias=False)
        self.fc_e = nn.Linear(edge_dim, heads * edge_dim, bias=False)
        self.attn_l = nn.Parameter(torch.empty(1, heads, out_channels))
        self.attn_r = nn.Parameter(torch.empty(1, heads, out_channels))
        self.attn_e = nn.Parameter(torch.empty(1, heads, edge_dim))
        needs_matrix = residual and in_channels != out_channels
        self.res_fc = nn.Linear(in_channels, wide, bias=False) if needs_matrix else None
        self.bias_param = nn.Parameter(torch.zeros(1, heads, out_channels)) if bias else None
        self.trace_options()
        self.reset_parameters()

    def read_options(self) -> tuple[Any, ...]:
        """See the base class."""
        return self.feature_dropout, self.dropout, self.negative_slope, self.beta

    def make_functions(self) -> None:
        """See the base class."""
        # With the last layer's attention or without, returning this layer's or not.
        self.functions = {
            (has_last, returns): self._compile(has_last, returns)
            for has_last in (False, True)
            for returns in (False, True)
        }
        self.function = self.functions[False, False]

    def _compile(self, has_last: bool, returns_attention: bool) -> Any:
        absent = set() if has_last else {"last"}
        absent |= {"res_fc"} if self.res_fc is None else set()
        absent |= {"bias"} if self.bias_param is None else set()
        sizes = {"width": self.in_channels, "out": self.out_channels}
        sizes |= {"heads": self.heads, "edge_width": self.edge_dim}
        options = {"options": self, "has_last": has_last, "returns_attention": returns_attention}
        return simple_hgn.compile(sizes, options, absent)

    def reset_parameters(self) -> None:
        """The authors' initial values: normal, scaled by Glorot's rule for relu."""
        self.edge_emb.reset_parameters()
        gain = nn.init.calculate_gain("relu")
        for each in (self.fc, self.fc_e, self.res_fc):
            if each is not None:
                nn.init.xavier_normal_(each.weight, gain=gain)
        for parameter in (self.attn_l, self.attn_r, self.attn_e):
            nn.init.xavier_normal_(parameter, gain=gain)
        if self.bias_param is not None:
            nn.init.zeros_(self.bias_param)

    def forward(
        self,
        x: torch.Tensor,
        edge_index: Any,
        edge_type: torch.Tensor | None = None,
        last_attention: torch.Tensor | None = None,
        return_attention_weights: bool = False,
    ) -> Any:
        """New features of the nodes.

        Args:
            x: (nodes, in_channels).
            edge_index: (2, edges), or a graph.
            edge_type: The relation of each edge; None (default) where the graph has it.
            last_attention: (edges, heads), as the layer before returned it; None (default) for
                none.
            return_attention_weights: Whether this layer's attention is returned, too; no gradient
                passes through it (default False).
        """
        stay_alone_after_fork()
        self.follow_options()
        require_one_set(x, self)
        graph, x, _, num_targets = read_input(x, edge_index, edge_type, self.num_relations)
        tensors = {
            "x": x,
            "fc": self.fc.weight.t(),
            "attn_l": self.attn_l[0],
            "attn_r": self.attn_r[0],
            "edge_emb": self.edge_emb.weight,
            "fc_e": self.fc_e.weight.t(),
            "attn_e": self.attn_e[0],
        }
        if last_attention is not None:
            tensors["last"] = self._require_attention(last_attention, graph)
        if self.res_fc is not None:
            tensors["res_fc"] = self.res_fc.weight.t()
        if self.bias_param is not None:
            tensors["bias"] = self.bias_param[0]
        function = self.functions[last_attention is not None, return_attention_weights]
        made = function(graph, tensors, training=self.training, num_targets=num_targets)
        out = made[0] if return_attention_weights else made
        if self.activation is not None:
            out = self.activation(out)
        if not return_attention_weights:
            return out
        return out, made[1].detach().squeeze(-1)

    def _require_attention(self, given: torch.Tensor, graph: RelationalGraph) -> torch.Tensor:
        expected = graph.num_edges, self.heads
        if tuple(given.shape) not in (expected, (*expected, 1)):
            raise LayerArgumentError(
                f"last_attention has shape {tuple(given.shape)}, expected {expected}: edges, heads",
                "pass what the layer before returned for the same edges, with as many heads",
            )
        return given.reshape(*expected, 1)

    def explain(self, **options: Any) -> str:
        """Every stage; `graph`, `stage`, `machine` and `picture` as of `CompiledLayer.explain`."""
        text: str = self.function.explain(**options)
        return text

    def extra_repr(self) -> str:
        """Widths, relations and heads."""
        return (
            f"{self.in_channels}, {self.out_channels}, num_relations={self.num_relations}, "
            f"edge_dim={self.edge_dim}, heads={self.heads}"
        )
