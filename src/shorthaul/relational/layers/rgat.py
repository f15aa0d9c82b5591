"""Relational graph attention (Busbridge et al.), with the options of PyG's layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.compiled_layer import layer
from shorthaul.relational.frontend.declarations import EdgeFeature, NodeFeature, Weight
from shorthaul.relational.frontend.language import (
    dropout,
    leaky_relu,
    linear,
    relu,
    softmax,
    total,
)
from shorthaul.relational.inputs.graph import (
    glorot,
    read_edge_features,
    read_input,
    require_widths,
)
from shorthaul.relational.inputs.self_loops import edges_of
from shorthaul.relational.layers.options import TracedLayer

MECHANISMS = {"across-relation": "target", "within-relation": "relation"}
MODES = ("additive-self-attention", "multiplicative-self-attention")
MODS = (None, "additive", "scaled", "f-additive", "f-scaled")


@layer
def rgat(
    g: Any,
    x: NodeFeature("width"),
    q: Weight("heads*out", "heads*dim"),
    k: Weight("heads*out", "heads*dim"),
    other: NodeFeature("width") = None,
    weight: Weight("relation", "width", "heads*out") = None,
    basis: Weight("bases", "width*heads*out") = None,
    att: Weight("relation", "bases") = None,
    blocks: Weight("relation", "blocks", "block_in", "block_out") = None,
    edge_attr: EdgeFeature("edge_width") = None,
    lin_edge: Weight("edge_width", "heads*out") = None,
    e_weight: Weight("heads*out", "heads*dim") = None,
    w: Weight("out") = None,
    l1: Weight("1", "out") = None,
    b1: Weight("out") = None,
    l2: Weight("out", "out") = None,
    b2: Weight("out") = None,
    bias: Weight("bias_width") = None,
    *,
    options: RGATConv,
    returns_attention: bool,
) -> Any:
    """Attention over all incoming edges, or within each relation; values are the projected sources.

    Where sources and targets are apart, sources come as `x` and targets as `other`.
    """
    heads, dim, out = options.heads, options.dim, options.out_channels
    whole = None
    if basis is not None:
        whole = linear(att, basis).reshape(options.in_channels, heads * out)

    def project(value: Any, relation: Any) -> Any:
        if blocks is not None:
            return linear(value.reshape(options.num_blocks, -1), blocks[relation]).reshape(-1)
        return linear(value, whole if whole is not None else weight[relation])

    for e in g.edges():
        e.value = project(e.source.x, e.relation)
        asking = e.target.x if other is None else e.target.other
        query, key = linear(project(asking, e.relation), q), linear(e.value, k)
        from_edge = None
        if e_weight is not None:
            from_edge = linear(linear(e.edge_attr, lin_edge), e_weight)
        logit = _agree(options, query, key, from_edge)
        e.share = e.alpha = softmax(logit, within=MECHANISMS[options.attention_mechanism])
        if options.mod == "f-additive":
            e.alpha = e.alpha + 1.0  # also where a share is too small for its dtype and became zero
        elif options.mod == "f-scaled":
            e.alpha = e.alpha * e.count()
        elif options.mod is None and options.dropout > 0:
            e.alpha = dropout(e.alpha, options.dropout)
    for n in g.target_nodes():
        for e in n.incoming_edges():
            share = e.alpha.reshape(heads, dim, 1)
            if options.mod == "additive":
                share = share + w
            elif options.mod == "scaled":
                share = share * (linear(relu(linear(e.count().reshape(1), l1) + b1), l2) + b2)
            n.sum += share * e.value.reshape(heads, 1, out)
        n.out = n.sum.reshape(-1) if options.concat else (total(n.sum, 0) / heads).reshape(-1)
        if bias is not None:
            n.out = n.out + bias
    return (n.out, e.share) if returns_attention else n.out


def _agree(options: RGATConv, query: Any, key: Any, from_edge: Any) -> Any:
    """What softmax is taken of."""
    if options.attention_mode == MODES[0]:
        logit = query + key if from_edge is None else query + key + from_edge
        return leaky_relu(logit, options.negative_slope)
    return query * key if from_edge is None else query * key * from_edge


class RGATConv(TracedLayer):
    """PyG's `RGATConv`: same arguments, same parameters, same numbers; compiled.

    Sources and targets may be apart: a pair of features.

    >>> import torch, shorthaul as sh
    >>> attend = sh.relational.RGATConv(8, 4, num_relations=2, heads=2)
    >>> edge_index, edge_type = torch.tensor([[0, 0, 1], [1, 2, 2]]), torch.tensor([0, 1, 0])
    >>> attend(torch.randn(3, 8), edge_index, edge_type).shape
    torch.Size([3, 8])

    Args:
        in_channels: Width of the features.
        out_channels: Width of each head.
        num_relations: Relations.
        num_bases: Weights of relations are mixed from this many; None (default) for weights of
            their own.
        num_blocks: Weights of relations have this many blocks on their diagonal; None (default) for
            full ones.
        mod: Changes the attention: `"additive"`, `"scaled"`, `"f-additive"`, `"f-scaled"`, or None
            (default).
        attention_mechanism: Edges that share attention: `"across-relation"` (default) or
            `"within-relation"`.
        attention_mode: `"additive-self-attention"` (default) or `"multiplicative-self-attention"`.
        heads: Heads of attention (default 1).
        dim: Width of each head's attention (default 1).
        concat: Whether heads are concatenated; False averages them (default True).
        negative_slope: Of the leaky ReLU (default 0.2).
        dropout: Share of the attention that becomes zero in training (default 0).
        edge_dim: Width of edge features; None (default) for none.
        bias: Whether the layer has a bias (default True).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_relations: int,
        num_bases: int | None = None,
        num_blocks: int | None = None,
        mod: str | None = None,
        attention_mechanism: str = "across-relation",
        attention_mode: str = "additive-self-attention",
        heads: int = 1,
        dim: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.num_relations, self.num_bases, self.num_blocks = num_relations, num_bases, num_blocks
        self.mod, self.attention_mechanism, self.attention_mode = (
            mod,
            attention_mechanism,
            attention_mode,
        )
        self.heads, self.dim, self.concat = heads, dim, concat
        self.negative_slope, self.dropout, self.edge_dim = negative_slope, dropout, edge_dim
        self._require_options()
        wide, narrow = heads * out_channels, heads * dim
        self.q = nn.Parameter(torch.empty(wide, narrow))
        self.k = nn.Parameter(torch.empty(wide, narrow))
        bias_width = (heads if concat else 1) * dim * out_channels
        self.bias = nn.Parameter(torch.empty(bias_width)) if bias else None
        self.lin_edge = None if edge_dim is None else nn.Linear(edge_dim, wide, bias=False)
        self.e = None if edge_dim is None else nn.Parameter(torch.empty(wide, narrow))
        if num_bases is not None:
            self.att = nn.Parameter(torch.empty(num_relations, num_bases))
            self.basis = nn.Parameter(torch.empty(num_bases, in_channels, wide))
        elif num_blocks is not None:
            shape = num_relations, num_blocks, in_channels // num_blocks, wide // num_blocks
            self.weight = nn.Parameter(torch.empty(shape))
        else:
            self.weight = nn.Parameter(torch.empty(num_relations, in_channels, wide))
        self.w = nn.Parameter(torch.ones(out_channels))
        self.l1 = nn.Parameter(torch.ones(1, out_channels))
        self.b1 = nn.Parameter(torch.zeros(1, out_channels))
        self.l2 = nn.Parameter(torch.empty(out_channels, out_channels))
        self.b2 = nn.Parameter(torch.zeros(1, out_channels))
        self.trace_options()
        self.reset_parameters()

    def _require_options(self) -> None:
        require_widths(self.in_channels)
        for name, value, known in (
            ("mod", self.mod, MODS),
            ("attention_mechanism", self.attention_mechanism, tuple(MECHANISMS)),
            ("attention_mode", self.attention_mode, MODES),
        ):
            if value not in known:
                raise LayerArgumentError(
                    f"{name} is {value!r}", f"it is one of {', '.join(map(str, known))}"
                )
        if self.attention_mode == MODES[0] and self.dim > 1:
            raise LayerArgumentError(
                f"dim is {self.dim}, but additive attention has one number per head",
                f"use attention_mode={MODES[1]!r}, or dim=1",
            )
        if self.dropout > 0 and self.mod is not None:
            raise LayerArgumentError(
                f"dropout {self.dropout} and mod={self.mod!r} do not go together",
                "leave one of them out",
            )
        if self.num_bases is not None and self.num_blocks is not None:
            raise LayerArgumentError(
                "RGATConv takes num_bases or num_blocks, not both", "leave one of them out"
            )
        wide = self.heads * self.out_channels
        if self.num_blocks and (self.in_channels % self.num_blocks or wide % self.num_blocks):
            raise LayerArgumentError(
                f"{self.num_blocks} blocks do not divide widths {self.in_channels} and {wide}",
                "choose num_blocks that divides both",
            )

    def read_options(self) -> tuple[Any, ...]:
        """See the base class."""
        return self.dropout, self.negative_slope, self.mod

    def make_functions(self) -> None:
        """See the base class."""
        self._require_options()
        # For one set of nodes or sources apart from targets, returning the attention or not.
        self.functions = {
            (is_apart, returns): self._compile(is_apart, returns)
            for is_apart in (False, True)
            for returns in (False, True)
        }
        self.function = self.functions[False, False]

    def _compile(self, is_apart: bool, returns_attention: bool) -> Any:
        bases, blocks = self.num_bases or 0, self.num_blocks or 0
        absent = {"weight", "basis", "att", "blocks"} - (
            {"basis", "att"} if bases else {"blocks"} if blocks else {"weight"}
        )
        if self.edge_dim is None:
            absent |= {"edge_attr", "lin_edge", "e_weight"}
        absent |= set() if self.mod == "additive" else {"w"}
        absent |= set() if self.mod == "scaled" else {"l1", "b1", "l2", "b2"}
        absent |= set() if self.bias is not None else {"bias"}
        absent |= set() if is_apart else {"other"}
        sizes = {
            "width": self.in_channels,
            "out": self.out_channels,
            "heads": self.heads,
            "dim": self.dim,
            "bases": bases,
            "blocks": blocks,
            "edge_width": self.edge_dim or 0,
            "bias_width": 0 if self.bias is None else self.bias.numel(),
        }
        if blocks:
            sizes["block_in"] = self.in_channels // blocks
            sizes["block_out"] = self.heads * self.out_channels // blocks
        options = {"options": self, "returns_attention": returns_attention}
        return rgat.compile(sizes, options, absent)

    def reset_parameters(self) -> None:
        """PyG's initial values, and for `l2` those that its documentation promises."""
        for name in ("weight", "basis", "att", "q", "k", "e"):
            parameter = getattr(self, name, None)
            if parameter is not None:
                glorot(parameter)
        if self.lin_edge is not None:
            glorot(self.lin_edge.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        nn.init.ones_(self.w)
        nn.init.ones_(self.l1)
        nn.init.zeros_(self.b1)
        nn.init.constant_(self.l2, 1 / self.out_channels)
        nn.init.zeros_(self.b2)

    def forward(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        edge_index: Any,
        edge_type: torch.Tensor | None = None,
        edge_attr: torch.Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """New features of the nodes; with `return_attention_weights`, also edges and their attention.

        Args:
            x: Node features, or those of sources and of targets.
            edge_index: (2, edges), or a graph.
            edge_type: The relation of each edge; None (default) where the graph has it.
            edge_attr: (edges, edge_dim); None (default) for none.
            size: Numbers of sources and targets; None (default) reads them off `x`.
            return_attention_weights: True or False returns the edges, too, and the share of each
                before `mod` and dropout; None (default) does not.
        """
        stay_alone_after_fork()
        self.follow_options()
        given = read_input(x, edge_index, edge_type, self.num_relations, size)
        tensors = {"x": given.sources, "q": self.q, "k": self.k, **self._read_weights()}
        features = read_edge_features(edge_attr, self.edge_dim)
        if features is not None and self.lin_edge is not None and self.e is not None:
            tensors |= {"edge_attr": features, "lin_edge": self.lin_edge.weight.t()}
            tensors["e_weight"] = self.e
        is_apart, returns = given.targets is not None, return_attention_weights is not None
        if given.targets is not None:
            missing = given.sources.shape[0] - given.targets.shape[0]
            tensors["other"] = nn.functional.pad(given.targets, (0, 0, 0, missing))
        made = self.functions[is_apart, returns](
            given.graph, tensors, training=self.training, num_targets=given.num_targets
        )
        return (
            (made[0], (edges_of(given.graph, given.sources.device).long(), made[1]))
            if returns
            else made
        )

    def _read_weights(self) -> dict[str, torch.Tensor]:
        """What the options ask for, under the program's names."""
        tensors: dict[str, torch.Tensor] = {}
        if self.num_bases is not None:
            tensors |= {"basis": self.basis.flatten(1), "att": self.att}
        else:
            tensors["blocks" if self.num_blocks is not None else "weight"] = self.weight
        if self.mod == "additive":
            tensors["w"] = self.w
        if self.mod == "scaled":
            tensors |= {"l1": self.l1, "b1": self.b1[0], "l2": self.l2, "b2": self.b2[0]}
        if self.bias is not None:
            tensors["bias"] = self.bias
        return tensors

    def explain(self, **options: Any) -> str:
        """Every stage; `graph`, `stage`, `machine` and `picture` as of `CompiledLayer.explain`."""
        text: str = self.function.explain(**options)
        return text

    def extra_repr(self) -> str:
        """Widths, relations and heads."""
        return (
            f"{self.in_channels}, {self.out_channels}, num_relations={self.num_relations}, "
            f"heads={self.heads}"
        )
