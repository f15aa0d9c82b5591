"""Relational graph convolution (Schlichtkrull et al.), as PyG documents it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import RelationalGraph
from shorthaul.relational.declarations import EdgeFeature, NodeFeature, Weight
from shorthaul.relational.language import linear, reduce_max
from shorthaul.relational.layer import layer
from shorthaul.relational.layers.graph_inputs import find_graph, glorot


@layer
def rgcn(
    g: Any,
    x: NodeFeature("width"),
    weight: Weight("relation", "width", "out") = None,
    basis: Weight("bases", "width*out") = None,
    comp: Weight("relation", "bases") = None,
    blocks: Weight("relation", "blocks", "block_in", "block_out") = None,
    root: Weight("width", "out") = None,
    bias: Weight("out") = None,
    *,
    aggr: str,
    width: int,
    out: int,
    blocks_in: int = 0,
) -> Any:
    """Sum over relations of the mean (sum, maximum) of the sources, times the relation's weight."""
    whole = linear(comp, basis).reshape(width, out) if basis is not None else None
    for n in g.target_nodes():
        for e in n.incoming_edges():
            source = e.source.x if aggr != "max" else reduce_max(e.source.x, within="relation")
            if blocks is not None:
                parts = linear(source.reshape(blocks_in, -1), blocks[e.relation])
                message = parts.reshape(-1)
            elif whole is not None:
                message = linear(source, whole)
            else:
                message = linear(source, weight[e.relation])
            if aggr == "add":
                n.out += message
            else:
                n.out += message / e.count(within="relation")
        if root is not None:
            n.out = n.out + linear(n.x, root)
        if bias is not None:
            n.out = n.out + bias
    return n.out


@layer
def rgcn_by_node(
    g: Any,
    message: EdgeFeature("out"),
    start: NodeFeature("out"),
    *,
    aggr: str,
) -> Any:
    """The same where the source is a node's number: every edge reads a row of its relation's table."""
    for n in g.target_nodes():
        n.out = n.start
        for e in n.incoming_edges():
            n.out += e.message if aggr == "add" else e.message / e.count(within="relation")
    return n.out


class RGCNConv(nn.Module):
    """PyG's `RGCNConv`: same arguments, same parameters, same numbers; compiled.

    >>> import torch, shorthaul as sh
    >>> convolve = sh.relational.RGCNConv(8, 4, num_relations=2)
    >>> edge_index, edge_type = torch.tensor([[0, 0, 1], [1, 2, 2]]), torch.tensor([0, 1, 0])
    >>> convolve(torch.randn(3, 8), edge_index, edge_type).shape
    torch.Size([3, 4])
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        num_relations: int,
        num_bases: int | None = None,
        num_blocks: int | None = None,
        aggr: str = "mean",
        root_weight: bool = True,
        is_sorted: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_bases is not None and num_blocks is not None:
            raise LayerArgumentError(
                "RGCNConv takes num_bases or num_blocks, not both", "leave one of them out"
            )
        if aggr not in ("mean", "add", "sum", "max"):
            raise LayerArgumentError(f"aggr is {aggr!r}", "it is 'mean', 'add' or 'max'")
        widths = in_channels if isinstance(in_channels, tuple) else (in_channels, in_channels)
        if widths[0] != widths[1]:
            raise LayerArgumentError(
                f"sources have width {widths[0]} and targets {widths[1]}",
                "project them to one width first",
            )
        width = widths[0]
        if num_blocks is not None and (width % num_blocks or out_channels % num_blocks):
            raise LayerArgumentError(
                f"{num_blocks} blocks do not divide widths {width} and {out_channels}",
                "choose num_blocks that divides both",
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.num_relations, self.num_bases, self.num_blocks = num_relations, num_bases, num_blocks
        self.aggr, self.is_sorted = "add" if aggr == "sum" else aggr, is_sorted
        self.width = width
        if num_bases is not None:
            self.weight = nn.Parameter(torch.empty(num_bases, width, out_channels))
            self.comp = nn.Parameter(torch.empty(num_relations, num_bases))
        elif num_blocks is not None:
            shape = num_relations, num_blocks, width // num_blocks, out_channels // num_blocks
            self.weight = nn.Parameter(torch.empty(shape))
            self.register_parameter("comp", None)
        else:
            self.weight = nn.Parameter(torch.empty(num_relations, width, out_channels))
            self.register_parameter("comp", None)
        self.root = nn.Parameter(torch.empty(width, out_channels)) if root_weight else None
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.function = self._compile()
        self.by_node = rgcn_by_node.compile({"out": out_channels}, {"aggr": self.aggr})
        self.reset_parameters()

    def _compile(self) -> Any:
        bases, blocks = self.num_bases or 0, self.num_blocks or 0
        absent = {"weight", "basis", "comp", "blocks"} - (
            {"basis", "comp"} if bases else {"blocks"} if blocks else {"weight"}
        )
        absent |= {name for name in ("root", "bias") if getattr(self, name) is None}
        sizes = {"width": self.width, "out": self.out_channels, "bases": bases, "blocks": blocks}
        if blocks:
            sizes |= {"block_in": self.width // blocks, "block_out": self.out_channels // blocks}
        options = {
            "aggr": self.aggr,
            "width": self.width,
            "out": self.out_channels,
            "blocks_in": blocks,
        }
        return rgcn.compile(sizes, options, absent)

    def reset_parameters(self) -> None:
        """PyG's initial values: Glorot's, and zero for the bias."""
        glorot(self.weight)
        for each in (self.comp, self.root):
            if each is not None:
                glorot(each)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None,
        edge_index: torch.Tensor | RelationalGraph,
        edge_type: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Features (or None or numbers of nodes, for a table of embeddings), edges, relations."""
        if x is None or (isinstance(x, torch.Tensor) and x.dtype in (torch.int32, torch.int64)):
            return self._forward_numbers(x, edge_index, edge_type)
        features, num_targets = _join(x)
        graph = _shift_targets(
            find_graph, edge_index, edge_type, x, features.shape[0], self.num_relations
        )
        tensors: dict[str, torch.Tensor] = {"x": features}
        if self.num_bases is not None:
            tensors |= {"basis": self.weight.flatten(1), "comp": self.comp}
        else:
            tensors["blocks" if self.num_blocks is not None else "weight"] = self.weight
        for name, value in (("root", self.root), ("bias", self.bias)):
            if value is not None:
                tensors[name] = value
        out: torch.Tensor = self.function(graph, tensors, training=self.training)
        return out if num_targets is None else out[features.shape[0] - num_targets :]

    def _forward_numbers(
        self,
        x: torch.Tensor | None,
        edge_index: torch.Tensor | RelationalGraph,
        edge_type: torch.Tensor | None,
    ) -> torch.Tensor:
        if self.num_blocks is not None or self.aggr == "max":
            raise LayerArgumentError(
                "nodes are given by number, which blocks and aggr='max' do not take",
                "pass features, or leave num_blocks and aggr='max' out",
            )
        number = x if x is not None else torch.arange(self.width)
        graph = find_graph(edge_index, edge_type, number.shape[0], self.num_relations)
        source = number[graph.source.long()].long()
        relation = graph.relation.long()
        if self.num_bases is not None:
            rows = self.weight.permute(1, 0, 2)[source]  # (edges, bases, out)
            message = torch.einsum("eb,ebo->eo", self.comp[relation], rows)
        else:
            message = self.weight.flatten(0, 1)[relation * self.width + source]
        start = message.new_zeros(number.shape[0], self.out_channels)
        if self.root is not None:
            start = start + self.root[number.long()]
        if self.bias is not None:
            start = start + self.bias
        tensors = {"message": message, "start": start}
        out: torch.Tensor = self.by_node(graph, tensors, training=self.training)
        return out

    def explain(self) -> str:
        """Every stage of the last compilation."""
        text: str = self.function.explain()
        return text

    def extra_repr(self) -> str:
        """Widths and relations."""
        return f"{self.in_channels}, {self.out_channels}, num_relations={self.num_relations}"


def _join(x: Any) -> tuple[torch.Tensor, int | None]:
    """Sources and targets as the nodes of one graph: targets after sources."""
    if isinstance(x, torch.Tensor):
        return x, None
    source, target = x
    return torch.cat([source, target]), target.shape[0]


def _shift_targets(
    find: Any, edge_index: Any, edge_type: Any, x: Any, num_nodes: int, num_relations: int
) -> RelationalGraph:
    if isinstance(x, torch.Tensor) or isinstance(edge_index, RelationalGraph):
        graph: RelationalGraph = find(edge_index, edge_type, num_nodes, num_relations)
        return graph
    shift = torch.tensor([[0], [x[0].shape[0]]], dtype=edge_index.dtype)
    shifted: RelationalGraph = find(edge_index + shift, edge_type, num_nodes, num_relations)
    return shifted
