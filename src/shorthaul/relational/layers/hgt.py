"""Heterogeneous graph transformer (Hu et al.), with PyG's parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.compiled_layer import layer
from shorthaul.relational.frontend.declarations import NodeFeature, Weight
from shorthaul.relational.frontend.language import dot, gelu, linear, sigmoid, softmax
from shorthaul.relational.inputs.graph import glorot
from shorthaul.relational.inputs.typed import (
    Metadata,
    Types,
    divide_by_heads,
    read_typed_input,
    read_widths,
)


@layer
def hgt(
    g: Any,
    k_rel: Weight("relation", "heads", "dim", "dim"),
    v_rel: Weight("relation", "heads", "dim", "dim"),
    p_rel: Weight("relation", "heads", "1"),
    kqv: NodeFeature("3*heads*dim") = None,
    x: NodeFeature("width") = None,
    kqv_weight: Weight("node_type", "width", "3*heads*dim") = None,
    kqv_bias: Weight("node_type", "3*heads*dim") = None,
    out_weight: Weight("node_type", "heads*dim", "heads*dim") = None,
    out_bias: Weight("node_type", "heads*dim") = None,
    skip: Weight("node_type", 1) = None,
    *,
    heads: int,
    dim: int,
) -> Any:
    """Keys, queries and values per node; attention over all incoming edges, maps per relation.

    Types of one width come as `x`, and all maps are taken here; otherwise `kqv` is made before, and
    the last map follows.
    """
    wide = heads * dim
    for n in g.nodes():
        made = n.kqv if x is None else linear(n.x, kqv_weight[n.type]) + kqv_bias[n.type]
        key, query, value = made.split(wide, wide, wide)
        n.key, n.query = key.reshape(heads, dim), query.reshape(heads, dim)
        n.value = value.reshape(heads, dim)
    for e in g.edges():
        agreement = dot(linear(e.source.key, k_rel[e.relation]), e.target.query)
        e.alpha = softmax(agreement * p_rel[e.relation] / math.sqrt(dim))
        e.message = linear(e.source.value, v_rel[e.relation])
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.heard += e.alpha * e.message
        n.out = gelu(n.heard.reshape(-1))
        if out_weight is not None:
            n.out = linear(n.out, out_weight[n.type]) + out_bias[n.type]
        if skip is not None:
            share = sigmoid(skip[n.type])
            n.out = n.out * share + n.x * (1.0 - share)
    return n.out


class _TypedLinear(nn.Module):
    """One linear map per node type, under PyG's names: `lins.<type>.weight`."""

    def __init__(self, widths: Mapping[str, int], out: int) -> None:
        super().__init__()
        self.lins = nn.ModuleDict({name: nn.Linear(width, out) for name, width in widths.items()})

    def reset_parameters(self) -> None:
        for each in self.lins.values():
            assert isinstance(each, nn.Linear)
            each.reset_parameters()


class _RelationMaps(nn.Module):
    """PyG's `HeteroLinear`: the matrix of head h and relation r is row h * relations + r."""

    def __init__(self, dim: int, relations: int, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads * relations, dim, dim))


class HGTConv(nn.Module):
    """PyG's `HGTConv`: same arguments, same parameters, same numbers; compiled.

    Edges may come in any order of their types, and types without edges may be left out. A node type
    that is no relation's target is not in the result.

    >>> import torch, shorthaul as sh
    >>> types = (["author", "paper"], [("author", "writes", "paper")])
    >>> transform = sh.relational.HGTConv({"author": 5, "paper": 8}, 8, types, heads=2)
    >>> x = {"author": torch.randn(3, 5), "paper": torch.randn(4, 8)}
    >>> edges = {("author", "writes", "paper"): torch.tensor([[0, 1, 2], [0, 0, 3]])}
    >>> transform(x, edges)["paper"].shape
    torch.Size([4, 8])

    Args:
        in_channels: Width of the features, or one for each node type.
        out_channels: Width of the result.
        metadata: Names of the node types, and the relations.
        heads: Heads of attention (default 1).
    """

    def __init__(
        self,
        in_channels: int | Mapping[str, int],
        out_channels: int,
        metadata: tuple[list[str], list[Types]],
        heads: int = 1,
    ) -> None:
        super().__init__()
        self.metadata = Metadata.read(metadata)
        self.node_types, self.edge_types = self.metadata
        widths = read_widths(in_channels, self.metadata)
        self.in_channels, self.out_channels, self.heads = widths, out_channels, heads
        dim, relations = divide_by_heads(out_channels, heads), len(self.edge_types)
        self.kqv_lin = _TypedLinear({name: widths[name] for name in widths}, 3 * out_channels)
        self.out_lin = _TypedLinear(dict.fromkeys(self.node_types, out_channels), out_channels)
        self.k_rel = _RelationMaps(dim, relations, heads)
        self.v_rel = _RelationMaps(dim, relations, heads)
        self.skip = nn.ParameterDict({n: nn.Parameter(torch.ones(1)) for n in self.node_types})
        self.p_rel = nn.ParameterDict(
            {"__".join(each): nn.Parameter(torch.ones(1, heads)) for each in self.edge_types}
        )
        inside = {"x", "kqv_weight", "kqv_bias", "out_weight", "out_bias", "skip"}
        self.width = widths[self.node_types[0]] if len(set(widths.values())) == 1 else None
        absent = {"kqv"} if self.width is not None else inside
        if self.width != out_channels:
            absent |= {"skip"}
        sizes = {"heads": heads, "dim": dim, "width": self.width or 0}
        self.function = hgt.compile(sizes, {"heads": heads, "dim": dim}, absent)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fresh maps, and ones for skips and priors, as in PyG."""
        self.kqv_lin.reset_parameters()
        self.out_lin.reset_parameters()
        for each in (self.k_rel.weight, self.v_rel.weight):
            glorot(each)
        for each in (*self.skip.values(), *self.p_rel.values()):
            nn.init.ones_(each)

    def forward(self, x_dict: Any, edge_index_dict: Any = None) -> dict[str, torch.Tensor]:
        """New features per node type.

        Args:
            x_dict: Features per node type, or `HeteroData`.
            edge_index_dict: A mapping of relations to edges, a typed `RelationalGraph` or a typed
                DGL graph; None (default) where `x_dict` has them.
        """
        stay_alone_after_fork()
        x_dict, graph = read_typed_input(
            x_dict, edge_index_dict, self.metadata, every_relation=True
        )
        chosen = torch.tensor(
            [self.edge_types.index(tuple(each)) for each in graph.relations],
            dtype=torch.int64,
            device="cpu",
        )
        priors = torch.stack([self.p_rel["__".join(each)][0] for each in self.edge_types])
        tensors = {
            "k_rel": self._by_relation(self.k_rel.weight)[chosen],
            "v_rel": self._by_relation(self.v_rel.weight)[chosen],
            "p_rel": priors[chosen].unsqueeze(-1),
        }
        if self.width is None:
            made = {name: self.kqv_lin.lins[name](x) for name, x in x_dict.items()}
            tensors["kqv"] = _join(made)
        else:
            tensors |= self._by_type(list(x_dict)) | {"x": _join(x_dict)}
        found: torch.Tensor = self.function(graph, tensors, training=self.training)
        targets = {each[2] for each in self.edge_types}
        parts = dict(
            zip(x_dict, torch.split(found, [len(x) for x in x_dict.values()]), strict=True)
        )
        return {
            name: self._finish(name, parts[name], x)
            for name, x in x_dict.items()
            if name in targets
        }

    def _by_type(self, names: list[str]) -> dict[str, torch.Tensor]:
        """The maps of these types, one matrix and one bias for each."""
        tensors = {}
        tensors["kqv_weight"], tensors["kqv_bias"] = _stack(self.kqv_lin, names)
        tensors["out_weight"], tensors["out_bias"] = _stack(self.out_lin, names)
        if self.width == self.out_channels:
            tensors["skip"] = torch.stack([self.skip[name] for name in names])
        return tensors

    def _by_relation(self, maps: torch.Tensor) -> torch.Tensor:
        """(relations, heads, dim, dim) of PyG's (heads * relations, dim, dim)."""
        shape = self.heads, len(self.edge_types), *maps.shape[1:]
        return maps.view(shape).transpose(0, 1)

    def _finish(self, name: str, made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self.width is not None:
            return made
        out: torch.Tensor = self.out_lin.lins[name](made)
        if out.shape[-1] != x.shape[-1]:
            return out
        share = self.skip[name].sigmoid()
        return share * out + (1 - share) * x

    def explain(self, **options: Any) -> str:
        """Every stage; `graph`, `stage`, `machine` and `picture` as of `CompiledLayer.explain`."""
        text: str = self.function.explain(**options)
        return text

    def extra_repr(self) -> str:
        """Width and heads."""
        return f"-1, {self.out_channels}, heads={self.heads}"


def _join(parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """All types' rows, one type after the other."""
    rows = list(parts.values())
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _stack(typed: Any, names: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices (types, in, out) and biases (types, out) of these types: ours, or PyG's own module."""
    maps = [typed.lins[name] for name in names]
    weights, biases = [each.weight.t() for each in maps], [each.bias for each in maps]
    return torch.stack(weights), torch.stack(biases)
