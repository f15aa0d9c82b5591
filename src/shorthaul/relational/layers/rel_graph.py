"""Relational graph convolution as DGL has it: sums, with a factor per edge if one is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.compiled_layer import layer
from shorthaul.relational.frontend.declarations import EdgeFeature, NodeFeature, Weight
from shorthaul.relational.frontend.language import layer_norm as normalize
from shorthaul.relational.frontend.language import linear
from shorthaul.relational.inputs.graph import read_input, require_one_set
from shorthaul.relational.inputs.typed_weights import TypedWeights


@layer
def rel_graph(
    g: Any,
    x: NodeFeature("width"),
    weight: Weight("relation", "width", "out") = None,
    basis: Weight("bases", "width*out") = None,
    coeff: Weight("relation", "bases") = None,
    blocks: Weight("relation", "bases", "block_in", "block_out") = None,
    norm: EdgeFeature(1) = None,
    scale: Weight("out") = None,
    shift: Weight("out") = None,
    bias: Weight("out") = None,
    loop: Weight("width", "out") = None,
    *,
    width: int,
    out: int,
    bases: int,
    has_norm: bool,
) -> Any:
    """The sum of all messages, normalized; then bias and the node itself."""
    whole = linear(coeff, basis).reshape(width, out) if basis is not None else None
    for n in g.target_nodes():
        for e in n.incoming_edges():
            if blocks is not None:
                message = linear(e.source.x.reshape(bases, -1), blocks[e.relation]).reshape(-1)
            else:
                message = linear(e.source.x, weight[e.relation] if whole is None else whole)
            n.out += message * e.norm if has_norm else message
        if scale is not None:
            n.out = normalize(n.out, scale, shift)
        if bias is not None:
            n.out = n.out + bias
        if loop is not None:
            n.out = n.out + linear(n.x, loop)
    return n.out


class RelGraphConv(nn.Module):
    """DGL's `RelGraphConv`: same arguments, same parameters, same numbers; compiled.

    The graph is a DGL graph or block, or whatever the other layers take: `edge_index`,
    `RelationalGraph`, a sampled block.

    >>> import torch, shorthaul as sh
    >>> convolve = sh.relational.RelGraphConv(8, 4, num_rels=2)
    >>> edge_index, kinds = torch.tensor([[0, 0, 1], [1, 2, 2]]), torch.tensor([0, 1, 0])
    >>> convolve(edge_index, torch.randn(3, 8), kinds).shape
    torch.Size([3, 4])

    Args:
        in_feat: Width of the features.
        out_feat: Width of the result.
        num_rels: Relations.
        regularizer: How weights of relations are tied: `"basis"`, `"bdd"` (blocks on their
            diagonal), or None (default).
        num_bases: Number of bases or blocks; None (default) for one per relation.
        bias: Whether the layer has a bias (default True).
        activation: Applied to the result; None (default) for none.
        self_loop: Whether a linear map of the target is added to its result (default True).
        dropout: Share of the result that becomes zero in training (default 0).
        layer_norm: Whether the sum of the messages is normalized layer-wise (default False).
    """

    def __init__(
        self,
        in_feat: int,
        out_feat: int,
        num_rels: int,
        regularizer: str | None = None,
        num_bases: int | None = None,
        bias: bool = True,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        self_loop: bool = True,
        dropout: float = 0.0,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.linear_r = TypedWeights(in_feat, out_feat, num_rels, regularizer, num_bases)
        self.in_feat, self.out_feat, self.num_rels = in_feat, out_feat, num_rels
        self.regularizer = regularizer
        self.num_bases = (num_rels if num_bases is None else num_bases) if regularizer else 0
        self.bias, self.self_loop, self.layer_norm = bias, self_loop, layer_norm
        self.activation = activation
        if bias:
            self.h_bias = nn.Parameter(torch.zeros(out_feat))
        if layer_norm:
            self.layer_norm_weight = nn.LayerNorm(out_feat)
        if self_loop:
            self.loop_weight = nn.Parameter(torch.empty(in_feat, out_feat))
            nn.init.xavier_uniform_(self.loop_weight, gain=nn.init.calculate_gain("relu"))
        self.dropout = nn.Dropout(dropout)
        self.function = self._compile(has_norm=False)
        self.with_norm = self._compile(has_norm=True)

    def _compile(self, *, has_norm: bool) -> Any:
        kinds = {None: {"weight"}, "basis": {"basis", "coeff"}, "bdd": {"blocks"}}
        absent = {"weight", "basis", "coeff", "blocks"} - kinds[self.regularizer]
        absent |= set() if has_norm else {"norm"}
        absent |= set() if self.bias else {"bias"}
        absent |= set() if self.self_loop else {"loop"}
        absent |= set() if self.layer_norm else {"scale", "shift"}
        sizes = {"width": self.in_feat, "out": self.out_feat, "bases": self.num_bases}
        options = {**sizes, "has_norm": has_norm}
        if self.regularizer == "bdd":
            sizes["block_in"] = self.in_feat // self.num_bases
            sizes["block_out"] = self.out_feat // self.num_bases
        return rel_graph.compile(sizes, options, absent)

    def forward(
        self,
        g: Any,
        feat: torch.Tensor,
        etypes: Any = None,
        norm: torch.Tensor | None = None,
        *,
        presorted: bool = False,  # noqa: ARG002 - DGL's signature
    ) -> torch.Tensor:
        """New features of the nodes.

        Args:
            g: A DGL graph, or whatever the other layers take.
            feat: (nodes, in_feat).
            etypes: The relation of each edge; None (default) where the graph has it.
            norm: (edges, 1): a factor for each message; None (default) for none.
            presorted: DGL's argument; it is found out without it (default False).
        """
        stay_alone_after_fork()
        require_one_set(feat, self)
        found = read_input(feat, g, etypes, self.num_rels)
        tensors = {"x": found.sources, **self._read_weights()}
        if norm is not None:
            if norm.numel() != found.graph.num_edges:
                raise LayerArgumentError(
                    f"norm has shape {tuple(norm.shape)}, but there are "
                    f"{found.graph.num_edges:,} edges",
                    "give one number per edge",
                )
            tensors["norm"] = norm.reshape(-1, 1)
        function = self.function if norm is None else self.with_norm
        out: torch.Tensor = function(
            found.graph, tensors, training=self.training, num_targets=found.num_targets
        )
        if self.activation is not None:
            out = self.activation(out)
        dropped: torch.Tensor = self.dropout(out)
        return dropped

    def _read_weights(self) -> dict[str, torch.Tensor]:
        whole = self.linear_r.W
        if self.regularizer == "basis":
            tensors = {"basis": whole.flatten(1), "coeff": self.linear_r.coeff}
        elif self.regularizer == "bdd":
            block = self.in_feat // self.num_bases, self.out_feat // self.num_bases
            tensors = {"blocks": whole.view(-1, self.num_bases, *block)}
        else:
            tensors = {"weight": whole}
        if self.bias:
            tensors["bias"] = self.h_bias
        if self.self_loop:
            tensors["loop"] = self.loop_weight
        if self.layer_norm:
            tensors["scale"] = self.layer_norm_weight.weight
            tensors["shift"] = self.layer_norm_weight.bias
        return tensors

    def explain(self, **options: Any) -> str:
        """Every stage; `graph`, `stage`, `machine` and `picture` as of `CompiledLayer.explain`."""
        text: str = self.function.explain(**options)
        return text

    def extra_repr(self) -> str:
        """Widths and relations."""
        return f"{self.in_feat}, {self.out_feat}, num_rels={self.num_rels}"
