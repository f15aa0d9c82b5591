"""CompGCN (Vashishth et al.): nodes composed with relations, a matrix per direction; the authors' parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import RelationalGraph
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.compiled_layer import layer
from shorthaul.relational.frontend.declarations import NodeFeature, Weight
from shorthaul.relational.frontend.language import concat, dropout, linear, total
from shorthaul.relational.inputs.graph import find_graph, keep_graph, require_one_set
from shorthaul.relational.layers.options import TracedLayer

COMPOSITIONS = ("sub", "mult", "corr")


@layer
def compgcn(
    g: Any,
    x: NodeFeature("width"),
    roots: NodeFeature(2),
    embedding: Weight("relation", "width"),
    direction: Weight("relation", 2),
    loop_rel: Weight("width"),
    w_both: Weight(2, "wide", "out"),
    w_loop: Weight("wide", "out"),
    fourier: Weight("width", "wide") = None,
    bias: Weight("out") = None,
    *,
    options: CompGCNConv,
) -> Any:
    """The sum of the composed neighbors for each direction, then a matrix for each direction.

    A sum comes before its matrix because there are fewer targets than edges. `roots` holds
    1 / sqrt(degree) by direction, `direction` a 1 where a relation has that direction.
    """
    # A correlation is a product of spectra: nodes and relations are transformed, edges never are.
    relations = embedding if fourier is None else linear(embedding, fourier)
    loop = loop_rel if fourier is None else linear(loop_rel, fourier)
    for n in g.nodes():
        n.hidden = n.x if fourier is None else linear(n.x, fourier)
    for n in g.target_nodes():
        for e in n.incoming_edges():
            along = embedding[e.relation] if fourier is None else relations
            share = e.source.roots * e.target.roots * direction[e.relation]
            composed = _compose(e.source.hidden, along, options.opn)
            n.heard += share.reshape(2, 1) * composed.reshape(1, -1)
        n.both = linear(n.heard, w_both)
        if options.dropout > 0:
            n.both = dropout(n.both, options.dropout)
        n.own = linear(_compose(n.hidden, loop, options.opn), w_loop)
        n.out = (total(n.both, 0).reshape(-1) + n.own) / 3.0
        if bias is not None:
            n.out = n.out + bias
    return n.out


def _compose(node: Any, relation: Any, opn: str) -> Any:
    if opn == "sub":
        return node - relation
    if opn == "mult":
        return node * relation
    half = node.shape[-1] // 2
    (real, imaginary), (other_real, other_imaginary) = (
        each.split(half, half) for each in (node, relation)
    )
    return concat(
        real * other_real + imaginary * other_imaginary,
        real * other_imaginary - imaginary * other_real,
    )


class CompGCNConv(TracedLayer):
    """One layer of CompGCN, with the parameters of its authors' code; compiled.

    There are `2 * num_relations` relations: the inverse of relation r is `num_relations + r`, as
    `RelationalGraph.with_inverses` makes them. They have embeddings, which the layer takes and returns.

    >>> import torch, shorthaul as sh
    >>> compose = sh.relational.CompGCNConv(8, 4, num_relations=1, opn="corr")
    >>> edge_index, edge_type = torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 1])
    >>> x, relations = compose(torch.randn(2, 8), edge_index, edge_type, torch.randn(2, 8))
    >>> x.shape, relations.shape
    (torch.Size([2, 4]), torch.Size([2, 4]))

    Args:
        in_channels: Width of the features of nodes and relations.
        out_channels: Width of the result.
        num_relations: Relations, without their inverses.
        opn: How a node is composed with a relation: `"sub"`, `"mult"`, or `"corr"`, circular
            correlation (default).
        dropout: Share of the summed messages that become zero in training (default 0).
        bias: Whether the layer has a bias (default False).
        batch_norm: Whether the result is normalized over the batch (default True).
        activation: Applied to the nodes' result; None (default) for none.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_relations: int,
        opn: str = "corr",
        dropout: float = 0.0,
        bias: bool = False,
        batch_norm: bool = True,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        if opn not in COMPOSITIONS:
            raise LayerArgumentError(f"opn is {opn!r}", f"it is one of {', '.join(COMPOSITIONS)}")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.num_relations, self.opn, self.dropout = num_relations, opn, dropout
        self.activation = activation
        self.w_loop, self.w_in, self.w_out, self.w_rel = (
            nn.Parameter(torch.empty(in_channels, out_channels)) for _ in range(4)
        )
        self.loop_rel = nn.Parameter(torch.empty(1, in_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.bn = nn.BatchNorm1d(out_channels) if batch_norm else None
        # In float64 and no buffers, so that `.double()` does not find them rounded.
        self._spectrum = _fourier_matrices(in_channels) if opn == "corr" else None
        self.trace_options()
        self.reset_parameters()

    def read_options(self) -> tuple[Any, ...]:
        """See the base class."""
        return (self.dropout,)

    def make_functions(self) -> None:
        """See the base class."""
        wide = self.in_channels if self._spectrum is None else self._spectrum[0].shape[1]
        absent = set() if self.opn == "corr" else {"fourier"}
        absent |= set() if self.bias is not None else {"bias"}
        sizes = {"width": self.in_channels, "wide": wide, "out": self.out_channels}
        self.function = compgcn.compile(sizes, {"options": self}, absent)

    def reset_parameters(self) -> None:
        """The authors' initial values: Glorot's, normally distributed, and zero for the bias."""
        for each in (self.w_loop, self.w_in, self.w_out, self.w_rel, self.loop_rel):
            nn.init.xavier_normal_(each)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.bn is not None:
            self.bn.reset_parameters()

    def forward(
        self,
        x: torch.Tensor,
        edge_index: Any,
        edge_type: torch.Tensor | None,
        rel_embed: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """New features of nodes and of relations.

        Args:
            x: (nodes, in_channels).
            edge_index: (2, edges), or a graph.
            edge_type: The relation of each edge; None where the graph has it.
            rel_embed: (2 * num_relations, in_channels).
        """
        stay_alone_after_fork()
        self.follow_options()
        require_one_set(x, self)
        expected = 2 * self.num_relations, self.in_channels
        if tuple(rel_embed.shape) != expected:
            raise LayerArgumentError(
                f"rel_embed has shape {tuple(rel_embed.shape)}, expected {expected}: relations and "
                "their inverses",
                "give a row per relation, then a row per inverse",
            )
        graph = find_graph(edge_index, edge_type, x.shape[0], expected[0])
        tensors = {"x": x, "embedding": rel_embed, "loop_rel": self.loop_rel[0]}
        tensors |= {"w_both": torch.stack([self.w_in, self.w_out]), "w_loop": self.w_loop}
        if self._spectrum is not None:
            tensors["fourier"], back = (each.to(x) for each in self._spectrum)
            for name in ("w_both", "w_loop"):  # back from spectra, in the same product
                tensors[name] = back @ tensors[name]
        if self.bias is not None:
            tensors["bias"] = self.bias
        tensors |= _find_directions(graph, x)
        out: torch.Tensor = self.function(graph, tensors, training=self.training)
        if self.bn is not None:
            out = self.bn(out)
        if self.activation is not None:
            out = self.activation(out)
        return out, rel_embed @ self.w_rel

    def explain(self, **options: Any) -> str:
        """Every stage; `graph`, `stage`, `machine` and `picture` as of `CompiledLayer.explain`."""
        text: str = self.function.explain(**options)
        return text

    def extra_repr(self) -> str:
        """Widths, relations and composition."""
        return (
            f"{self.in_channels}, {self.out_channels}, num_relations={self.num_relations}, "
            f"opn={self.opn!r}"
        )


def _find_directions(graph: RelationalGraph, like: torch.Tensor) -> dict[str, torch.Tensor]:
    """Which relations have which direction, and 1 / sqrt(incoming edges) of each: 0 where none are."""

    def make() -> dict[str, torch.Tensor]:
        half = graph.num_relations // 2
        direction = torch.zeros(graph.num_relations, 2, dtype=like.dtype, device="cpu")
        direction[:half, 0] = direction[half:, 1] = 1
        places = 2 * graph.target.long() + (graph.relation >= half)
        counts = torch.zeros(2 * graph.num_nodes, dtype=torch.float64, device="cpu")
        counts = counts.index_add(0, places, torch.ones_like(places, dtype=torch.float64))
        roots = torch.where(counts > 0, counts.rsqrt(), 0).view(-1, 2)
        return {"direction": direction.to(like), "roots": roots.to(like)}

    if torch.compiler.is_compiling():
        return make()
    return keep_graph(("directions", like.dtype, like.device), [graph], make)


def _fourier_matrices(width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`x @ there` is the spectrum of a real x, real parts then imaginary ones; `@ back` undoes it."""
    count = width // 2 + 1
    frequency = torch.arange(count, dtype=torch.float64, device="cpu")
    place = torch.arange(width, dtype=torch.float64, device="cpu")
    # The remainder first: large products would lose the angle's last digits.
    angle = 2 * math.pi * (torch.outer(place, frequency) % width) / width
    there = torch.cat([angle.cos(), -angle.sin()], 1)
    # A frequency stands for its mirror image, too, but for the first and, if even, the last.
    images = torch.full((count,), 2.0, dtype=torch.float64, device="cpu")
    images[0] = 1
    if width % 2 == 0:
        images[-1] = 1
    return there, (there * images.repeat(2)).t() / width
