"""Relational graph convolution (Schlichtkrull et al.), as PyG documents it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.edge_tensors import require_range
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.compiled_layer import layer
from shorthaul.relational.frontend.declarations import NodeFeature, Weight
from shorthaul.relational.frontend.language import linear, reduce_max, total
from shorthaul.relational.inputs.graph import (
    LayerInput,
    glorot,
    keep_graph,
    read_input,
    require_widths,
)
from shorthaul.relational.topology.derived_graph import derive_graph


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
def rgcn_by_number(
    g: Any,
    table: NodeFeature("rows", "out"),
    comp: Weight("relation", "rows") = None,
    *,
    aggr: str,
    rows: int,
    out: int,
) -> Any:
    """The same where a node is its number: its message is a row of the relation's table.

    Without bases, the graph's nodes are the rows of all tables, one after the other. With them, a node
    has a row in the table of each base, and the relation says how much of each.
    """
    for n in g.target_nodes():
        for e in n.incoming_edges():
            message = e.source.table
            if comp is not None:
                message = total(message * comp[e.relation].reshape(rows, 1), 0)
            message = message.reshape(out)
            if aggr == "max":
                message = reduce_max(message, within="relation")
            n.out += message if aggr == "add" else message / e.count(within="relation")
    return n.out


class RGCNConv(nn.Module):
    """PyG's `RGCNConv`: same arguments, same parameters, same numbers; compiled.

    >>> import torch, shorthaul as sh
    >>> convolve = sh.relational.RGCNConv(8, 4, num_relations=2)
    >>> edge_index, edge_type = torch.tensor([[0, 0, 1], [1, 2, 2]]), torch.tensor([0, 1, 0])
    >>> convolve(torch.randn(3, 8), edge_index, edge_type).shape
    torch.Size([3, 4])

    Args:
        in_channels: Width of the features, twice if it is a pair, or the number of nodes for a
            table of embeddings.
        out_channels: Width of the result.
        num_relations: Relations.
        num_bases: Weights of relations are mixed from this many; None (default) for weights of
            their own.
        num_blocks: Weights of relations have this many blocks on their diagonal; None (default) for
            full ones.
        aggr: `"mean"` over the edges of each relation (default), `"add"` or `"max"`.
        root_weight: Whether a linear map of the target is added to its result (default True).
        is_sorted: PyG's argument; it is found out without it (default False).
        bias: Whether the layer has a bias (default True).
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
        require_widths(in_channels)
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
        self.apart = self._compile(absent={"root"})  # targets have features of their own
        numbers = {"aggr": self.aggr, "rows": num_bases or 1, "out": out_channels}
        sizes = {"rows": num_bases or 1, "out": out_channels}
        self.by_number = rgcn_by_number.compile(
            sizes, numbers, () if num_bases is not None else ("comp",)
        )
        self.reset_parameters()

    def _compile(self, absent: Collection[str] = ()) -> Any:
        bases, blocks = self.num_bases or 0, self.num_blocks or 0
        absent = {"weight", "basis", "comp", "blocks", *absent} - (
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
        edge_index: Any,
        edge_type: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """New features of the nodes.

        Args:
            x: Node features, those of sources and of targets, or, for a table of embeddings, None
                or numbers of nodes.
            edge_index: (2, edges), or a graph.
            edge_type: The relation of each edge; None (default) where the graph has it.
        """
        stay_alone_after_fork()
        if x is None or (isinstance(x, torch.Tensor) and x.dtype in (torch.int32, torch.int64)):
            numbers = (
                x if x is not None else torch.arange(self.width, dtype=torch.int64, device="cpu")
            )
            found = read_input(numbers, edge_index, edge_type, self.num_relations)
            return self._forward_numbers(found, is_all=x is None)
        found = read_input(x, edge_index, edge_type, self.num_relations)
        tensors: dict[str, torch.Tensor] = {"x": found.sources}
        if self.num_bases is not None:
            tensors |= {"basis": self.weight.flatten(1), "comp": self.comp}
        else:
            tensors["blocks" if self.num_blocks is not None else "weight"] = self.weight
        if self.bias is not None:
            tensors["bias"] = self.bias
        if found.targets is not None:
            out: torch.Tensor = self.apart(
                found.graph, tensors, training=self.training, num_targets=found.num_targets
            )
            return out if self.root is None else torch.addmm(out, found.targets, self.root)
        if self.root is not None:
            tensors["root"] = self.root
        joined: torch.Tensor = self.function(
            found.graph, tensors, training=self.training, num_targets=found.num_targets
        )
        return joined

    def _forward_numbers(self, found: LayerInput, *, is_all: bool) -> torch.Tensor:
        numbers = found.sources
        if numbers.dim() != 1:
            raise LayerArgumentError(
                f"`x` is {numbers.dtype} of shape {tuple(numbers.shape)}: whole numbers are numbers of "
                "nodes, one each",
                "convert features: x.float()",
            )
        if self.num_blocks is not None:
            raise LayerArgumentError(
                "nodes are given by number, which blocks do not take",
                "pass features, or leave num_blocks out",
            )
        if self.num_bases is not None:
            table = self.weight.transpose(0, 1)  # (width, bases, out)
            tensors = {"table": table if is_all else table[numbers.long()], "comp": self.comp}
            graph = found.graph
        else:
            graph = keep_graph(
                ("table", self.width),
                [found.graph] if is_all else [found.graph, numbers],
                lambda: _number_rows(found.graph, numbers, self.width),
            )
            rows = self.weight.flatten(0, 1).unsqueeze(1)
            missing = (
                graph.num_nodes - rows.shape[0]
            )  # more nodes are targets than tables have rows
            if missing > 0:
                rows = nn.functional.pad(rows, (0, 0, 0, 0, 0, missing))
            tensors = {"table": rows}
        num_targets = numbers.shape[0] if found.num_targets is None else found.num_targets
        out: torch.Tensor = self.by_number(
            graph, tensors, training=self.training, num_targets=num_targets
        )
        if self.root is not None:
            out = out + (self.root if is_all else self.root[numbers[:num_targets].long()])
        return out if self.bias is None else out + self.bias

    def explain(self, **options: Any) -> str:
        """Every stage; `graph`, `stage`, `machine` and `picture` as of `CompiledLayer.explain`."""
        text: str = self.function.explain(**options)
        return text

    def extra_repr(self) -> str:
        """Widths and relations."""
        return f"{self.in_channels}, {self.out_channels}, num_relations={self.num_relations}"


def _number_rows(graph: RelationalGraph, numbers: torch.Tensor, width: int) -> RelationalGraph:
    """`graph` with a source for each row of all relations' tables: row r * width + n for node n."""
    require_range(numbers, width, "number", "nodes in the layer's table")
    numbers = numbers.to(graph.source.device)
    sources = graph.relation.long() * width + numbers.long()[graph.source.long()]
    return derive_graph(
        sources,
        graph.target,
        graph.relation,
        num_nodes=max(graph.num_relations * width, graph.num_nodes),
        num_relations=graph.num_relations,
    )
