"""Heterogeneous graph transformer as DGL computes it, with DGL's parameters.

It is another formula than PyG's: no biases, no activation before the last map, a norm after the skip,
one width for all types of nodes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.edge_tensors import read_numbers, require_range
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.compiled_layer import layer
from shorthaul.relational.frontend.declarations import NodeFeature, Weight
from shorthaul.relational.frontend.language import (
    dot,
    dropout,
    layer_norm,
    linear,
    sigmoid,
    softmax,
)
from shorthaul.relational.inputs.graph import (
    LayerInput,
    keep_graph,
    read_input,
    require_one_set,
)
from shorthaul.relational.inputs.typed_weights import TypedWeights
from shorthaul.relational.layers.options import TracedLayer


@layer
def dgl_hgt(
    g: Any,
    x: NodeFeature("width"),
    kqv: Weight("node_type", "width", "3*heads*dim"),
    last: Weight("node_type", "heads*dim", "heads*dim"),
    agree: Weight("relation", "heads", "dim", "dim"),
    tell: Weight("relation", "heads", "dim", "dim"),
    prior: Weight("relation", "heads", 1),
    skip: Weight("node_type", 1),
    residual: Weight("width", "heads*dim") = None,
    scale: Weight("heads*dim") = None,
    shift: Weight("heads*dim") = None,
    *,
    heads: int,
    dim: int,
    dropped: float,
) -> Any:
    """Keys, queries and values by node type, maps and priors by relation, a share of what was there."""
    wide = heads * dim
    for n in g.nodes():
        key, query, value = linear(n.x, kqv[n.type]).split(wide, wide, wide)
        n.key, n.query = key.reshape(heads, dim), query.reshape(heads, dim)
        n.value = value.reshape(heads, dim)
    for e in g.edges():
        score = dot(linear(e.source.key, agree[e.relation]), e.target.query)
        e.alpha = softmax(score * prior[e.relation] / dim**0.5)
        e.told = linear(e.source.value, tell[e.relation])
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.heard += e.alpha * e.told
        heard = linear(n.heard.reshape(-1), last[n.type])
        if dropped > 0:
            heard = dropout(heard, dropped)
        share = sigmoid(skip[n.type])
        own = n.x if residual is None else linear(n.x, residual)
        n.out = heard * share + own * (1.0 - share)
        if scale is not None:
            n.out = layer_norm(n.out, scale, shift)
    return n.out


class DGLHGTConv(TracedLayer):
    """DGL's `HGTConv`: same arguments, same parameters, same numbers; compiled.

    >>> import torch, shorthaul as sh
    >>> transform = sh.relational.DGLHGTConv(8, 4, num_heads=2, num_ntypes=2, num_etypes=2)
    >>> edge_index, etype = torch.tensor([[0, 0, 1], [1, 2, 2]]), torch.tensor([0, 1, 0])
    >>> transform(edge_index, torch.randn(3, 8), torch.tensor([1, 0, 1]), etype).shape
    torch.Size([3, 8])

    Args:
        in_size: Width of the features.
        head_size: Width of each head; the result has `head_size * num_heads`.
        num_heads: Heads of attention.
        num_ntypes: Types of nodes.
        num_etypes: Relations.
        dropout: Share of the result that becomes zero in training (default 0.2).
        use_norm: Whether the result is normalized layer-wise (default False).
    """

    def __init__(
        self,
        in_size: int,
        head_size: int,
        num_heads: int,
        num_ntypes: int,
        num_etypes: int,
        dropout: float = 0.2,
        use_norm: bool = False,
    ) -> None:
        super().__init__()
        wide = head_size * num_heads
        self.in_size, self.head_size, self.num_heads = in_size, head_size, num_heads
        self.num_ntypes, self.num_etypes, self.use_norm = num_ntypes, num_etypes, use_norm
        self.linear_k = TypedWeights(in_size, wide, num_ntypes)
        self.linear_q = TypedWeights(in_size, wide, num_ntypes)
        self.linear_v = TypedWeights(in_size, wide, num_ntypes)
        self.linear_a = TypedWeights(wide, wide, num_ntypes)
        self.relation_pri = nn.ParameterList(
            [nn.Parameter(torch.ones(num_etypes)) for _ in range(num_heads)]
        )
        self.relation_att, self.relation_msg = (
            nn.ModuleList(
                [TypedWeights(head_size, head_size, num_etypes) for _ in range(num_heads)]
            )
            for _ in range(2)
        )
        self.skip = nn.Parameter(torch.ones(num_ntypes))
        self.drop = nn.Dropout(dropout)
        if use_norm:
            self.norm = nn.LayerNorm(wide)
        if in_size != wide:
            self.residual_w = nn.Parameter(torch.empty(in_size, wide))
            nn.init.xavier_uniform_(self.residual_w)
        self.trace_options()

    def read_options(self) -> tuple[Any, ...]:
        """See the base class."""
        return (self.drop.p,)

    def make_functions(self) -> None:
        """See the base class."""
        has_residual = self.in_size != self.num_heads * self.head_size
        absent = set() if has_residual else {"residual"}
        absent |= set() if self.use_norm else {"scale", "shift"}
        widths = {"heads": self.num_heads, "dim": self.head_size}
        self.function = dgl_hgt.compile(
            {"width": self.in_size, **widths}, {**widths, "dropped": self.drop.p}, absent
        )

    def forward(
        self,
        g: Any,
        x: torch.Tensor,
        ntype: torch.Tensor,
        etype: Any = None,
        *,
        presorted: bool = False,  # noqa: ARG002 - DGL's signature
    ) -> torch.Tensor:
        """New features of the nodes.

        Nodes of a type are needed side by side: where they are not, features are put in that order and
        results back.

        Args:
            g: A DGL graph, or whatever the other layers take.
            x: (nodes, in_size).
            ntype: The type of each node.
            etype: The relation of each edge; None (default) where the graph has it.
            presorted: DGL's argument; it is found out without it (default False).
        """
        stay_alone_after_fork()
        self.follow_options()
        require_one_set(x, self)
        found = read_input(x, g, etype, self.num_etypes)
        sorted_graph = _sort_nodes(found, ntype, self.num_ntypes)
        tensors = self._read_weights()
        tensors["x"] = x if sorted_graph.order is None else x[sorted_graph.order]
        out: torch.Tensor = self.function(
            sorted_graph.graph,
            tensors,
            training=self.training,
            num_targets=found.num_targets if sorted_graph.order is None else None,
        )
        return out if sorted_graph.places is None else out[sorted_graph.places]

    def _read_weights(self) -> dict[str, torch.Tensor]:
        keys, queries, values = (each.W for each in (self.linear_k, self.linear_q, self.linear_v))
        tensors = {
            "kqv": torch.cat([keys, queries, values], -1),
            "last": self.linear_a.W,
            "agree": torch.stack([each.W for each in self.relation_att], 1),  # type: ignore[misc]
            "tell": torch.stack([each.W for each in self.relation_msg], 1),  # type: ignore[misc]
            "prior": torch.stack(list(self.relation_pri), 1).unsqueeze(-1),
            "skip": self.skip.unsqueeze(-1),
        }
        if self.use_norm:
            tensors |= {"scale": self.norm.weight, "shift": self.norm.bias}
        if self.in_size != self.head_size * self.num_heads:
            tensors["residual"] = self.residual_w
        return tensors

    def explain(self, **options: Any) -> str:
        """Every stage; `graph`, `stage`, `machine` and `picture` as of `CompiledLayer.explain`."""
        text: str = self.function.explain(**options)
        return text

    def extra_repr(self) -> str:
        """Widths, heads and types."""
        return (
            f"{self.in_size}, {self.head_size}, num_heads={self.num_heads}, "
            f"num_ntypes={self.num_ntypes}, num_etypes={self.num_etypes}"
        )


class _SortedNodes:
    """A graph whose nodes of a type are side by side, and the way there and back."""

    def __init__(self, found: LayerInput, ntype: torch.Tensor, num_types: int) -> None:
        kinds, graph = read_numbers(ntype, "ntype").long(), found.graph
        if kinds.shape[0] != graph.num_nodes:
            raise LayerArgumentError(
                f"ntype has {kinds.shape[0]:,} numbers, but there are {graph.num_nodes:,} nodes",
                "give the type of every node",
            )
        require_range(kinds, num_types, "type", "types of nodes")
        self.order: torch.Tensor | None = None  # where the rows of the sorted nodes come from
        self.places: torch.Tensor | None = None  # where the rows of the targets are among them
        source, target = graph.source, graph.target
        if not bool((kinds[1:] >= kinds[:-1]).all()):
            self.order = torch.argsort(kinds, stable=True)
            places = torch.argsort(self.order)
            self.places = places[: found.num_targets]
            source, target = places[source.long()], places[target.long()]
        counts = torch.bincount(kinds, minlength=num_types).tolist()
        # Relations of DGL join nodes of any types, so they are not named by them.
        self.graph = RelationalGraph(
            tuple(map(str, range(num_types))),
            tuple(counts),
            graph.relations,
            source.to(graph.index_dtype).contiguous(),
            target.to(graph.index_dtype).contiguous(),
            graph.relation,
        )


def _sort_nodes(found: LayerInput, ntype: torch.Tensor, num_types: int) -> _SortedNodes:
    return keep_graph(
        ("sorted", num_types, found.num_targets),
        [found.graph, ntype],
        lambda: _SortedNodes(found, ntype, num_types),
    )
