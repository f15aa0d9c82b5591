"""Heterogeneous graph attention (Wang et al.), with PyG's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from shorthaul.graphs import RelationalGraph
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.compiled_layer import layer
from shorthaul.relational.frontend.declarations import NodeFeature, Weight
from shorthaul.relational.frontend.language import dot, dropout, leaky_relu, relu, softmax
from shorthaul.relational.inputs.graph import glorot
from shorthaul.relational.inputs.paths import find_paths
from shorthaul.relational.inputs.typed import (
    Metadata,
    divide_by_heads,
    read_typed_input,
    read_widths,
)
from shorthaul.relational.layers.options import TracedLayer


@layer
def han(
    g: Any,
    value: NodeFeature("heads", "dim"),
    query: NodeFeature("heads", 1),
    lin_src: Weight("relation", "heads", "dim"),
    *,
    options: HANConv,
) -> Any:
    """Attention of one (relation, target) over the relation's sources: every such pair is a target."""
    for e in g.edges():
        logit = dot(e.source.value, lin_src[e.relation]) + e.target.query
        e.alpha = softmax(leaky_relu(logit, options.negative_slope))
        if options.dropout > 0:
            e.alpha = dropout(e.alpha, options.dropout)
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.heard += e.alpha * e.source.value
        n.out = relu(n.heard.reshape(-1))
    return n.out


class HANConv(TracedLayer):
    """PyG's `HANConv`: same arguments, same parameters, same numbers; compiled.

    Attention over the edges of each relation (a metapath, if the edges are its ends), then attention
    over the relations that reach a node type. Only relations that are given take part. A node type
    that none of them reaches has None, as in PyG.

    >>> import torch, shorthaul as sh
    >>> types = (["author", "paper"], [("author", "writes", "paper"), ("paper", "cites", "paper")])
    >>> attend = sh.relational.HANConv({"author": 5, "paper": 8}, 8, types, heads=2)
    >>> x = {"author": torch.randn(3, 5), "paper": torch.randn(4, 8)}
    >>> edges = {("author", "writes", "paper"): torch.tensor([[0, 1, 2], [0, 0, 3]])}
    >>> attend(x, edges)["paper"].shape
    torch.Size([4, 8])

    Args:
        in_channels: Width of the features, or one for each node type.
        out_channels: Width of the result.
        metadata: Names of the node types, and the relations.
        heads: Heads of attention (default 1).
        negative_slope: Of the leaky ReLU (default 0.2).
        dropout: Share of the attention that becomes zero in training (default 0).
    """

    def __init__(
        self,
        in_channels: int | Mapping[str, int],
        out_channels: int,
        metadata: tuple[list[str], list[tuple[str, str, str]]],
        heads: int = 1,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.metadata = Metadata.read(metadata)
        self.in_channels = read_widths(in_channels, self.metadata)
        self.out_channels, self.heads = out_channels, heads
        self.negative_slope, self.dropout = negative_slope, dropout
        self.k_lin = nn.Linear(out_channels, out_channels)
        self.q = nn.Parameter(torch.empty(1, out_channels))
        self.proj = nn.ModuleDict(
            {name: nn.Linear(width, out_channels) for name, width in self.in_channels.items()}
        )
        dim = self.dim = divide_by_heads(out_channels, heads)
        self.lin_src, self.lin_dst = (
            nn.ParameterDict(
                {
                    "__".join(each): nn.Parameter(torch.empty(1, heads, dim))
                    for each in self.metadata.edge_types
                }
            )
            for _ in range(2)
        )
        self.trace_options()
        self.reset_parameters()

    def read_options(self) -> tuple[Any, ...]:
        """See the base class."""
        return self.dropout, self.negative_slope

    def make_functions(self) -> None:
        """See the base class."""
        sizes = {"heads": self.heads, "dim": self.dim}
        self.function = han.compile(sizes, {"options": self})

    def reset_parameters(self) -> None:
        """PyG's initial values: Glorot's for attention, PyTorch's for the projections."""
        for each in (self.k_lin, *self.proj.values()):
            assert isinstance(each, nn.Linear)
            each.reset_parameters()
        for parameter in (self.q, *self.lin_src.values(), *self.lin_dst.values()):
            glorot(parameter)

    def forward(
        self,
        x_dict: Any,
        edge_index_dict: Any = None,
        return_semantic_attention_weights: bool = False,
    ) -> Any:
        """New features per node type.

        Args:
            x_dict: Features per node type, or `HeteroData`.
            edge_index_dict: Edges per relation; None (default) where `x_dict` has them.
            return_semantic_attention_weights: Whether the share of each relation, per node type, is
                returned, too, in the order in which relations were given (default False).
        """
        stay_alone_after_fork()
        self.follow_options()
        x_dict, graph = read_typed_input(x_dict, edge_index_dict, self.metadata)
        values = {
            name: self.proj[name](x).view(-1, self.heads, self.out_channels // self.heads)
            for name, x in x_dict.items()
        }
        reached: dict[str, list[torch.Tensor]] = {name: [] for name in x_dict}
        for relation, heard in zip(graph.relations, self._attend(values, graph), strict=True):
            reached[relation[2]].append(heard)
        found = {name: self._weigh(each) for name, each in reached.items()}
        out = {name: result for name, (result, _) in found.items()}
        if not return_semantic_attention_weights:
            return out
        return out, {name: shares for name, (_, shares) in found.items()}

    def _attend(self, values: dict[str, torch.Tensor], graph: RelationalGraph) -> Any:
        """What the targets of each relation hear: one tensor per relation."""
        if not graph.relations:
            return ()
        names = ["__".join(each) for each in graph.relations]
        queries = [
            (values[each[2]] * self.lin_dst[name]).sum(-1, keepdim=True)
            for name, each in zip(names, graph.relations, strict=True)
        ]
        counts = [each.shape[0] for each in queries]
        value, query = torch.cat(list(values.values())), torch.cat(queries)
        num_targets = query.shape[0]
        num_nodes = max(value.shape[0], num_targets)
        tensors = {
            "value": _fill(value, num_nodes),
            "query": _fill(query, num_nodes),
            "lin_src": torch.cat([self.lin_src[name] for name in names]),
        }
        heard: torch.Tensor = self.function(
            find_paths(graph), tensors, training=self.training, num_targets=num_targets
        )
        return torch.split(heard, counts)

    def _weigh(self, heard: list[torch.Tensor]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The relations' results, weighted by attention that is the same for all nodes of a type."""
        if not heard:
            return None, None
        results = torch.stack(heard)
        if not results.numel():
            return results[0], None
        agreement = (self.q * torch.tanh(self.k_lin(results)).mean(1)).sum(-1)
        shares = functional.softmax(agreement, 0)
        return torch.einsum("r,rno->no", shares, results), shares

    def explain(self, **options: Any) -> str:
        """Every stage; `graph`, `stage`, `machine` and `picture` as of `CompiledLayer.explain`."""
        text: str = self.function.explain(**options)
        return text

    def extra_repr(self) -> str:
        """Width and heads."""
        return f"{self.out_channels}, heads={self.heads}"


def _fill(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Rows of zeros that nobody reads, up to `count`."""
    missing = count - rows.shape[0]
    return functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)) if missing else rows
