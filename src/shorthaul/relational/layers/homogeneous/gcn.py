"""Graph convolutional network (Kipf and Welling) as a program with one relation, with PyG's parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.compiled_layer import layer
from shorthaul.relational.frontend.declarations import EdgeFeature, NodeFeature, Weight
from shorthaul.relational.frontend.language import (
    absolute,
    linear,
    over_nodes,
    positive,
    reduce_max,
    sqrt,
)
from shorthaul.relational.inputs.graph import glorot, require_one_set
from shorthaul.relational.inputs.kept_graphs import keep_graph
from shorthaul.relational.inputs.self_loops import add_loops, edges_of, replace_loops
from shorthaul.relational.layers.homogeneous.base import (
    REDUCTIONS,
    HomogeneousConv,
    read_adjacency,
    read_edge_weight,
    read_pair,
    require_aggregation,
)


@layer
def gcn(
    g: Any,
    x: NodeFeature("width"),
    lin: Weight("width", "out"),
    weight: EdgeFeature() = None,
    bias: Weight("out") = None,
    *,
    aggr: str,
    normalize: bool,
) -> Any:
    """The neighbors' sum, each divided by the square roots of both ends' degrees, times a matrix."""
    if normalize:
        for n in g.target_nodes():
            for e in n.incoming_edges():
                if weight is None:
                    n.degree = reduce_max(e.count()).reshape(1)
                else:
                    n.degree += e.weight.reshape(1)
            is_zero = 1.0 - positive(absolute(n.degree))  # then nothing is divided
            n.share = (1.0 - is_zero) / sqrt(n.degree + is_zero)
            n.source_share = over_nodes(n.share)
    for n in g.target_nodes():
        for e in n.incoming_edges():
            message = e.source.x
            if normalize:
                message = message * (e.source.source_share * e.target.share)
            if weight is not None:
                message = message * e.weight.reshape(1)
            n.heard = REDUCTIONS[aggr](linear(message, lin))
        n.out = n.heard if bias is None else n.heard + bias
    return n.out


class GCNConv(HomogeneousConv):
    """PyG's `GCNConv`: same arguments, same parameters, same numbers; compiled.

    >>> import torch, shorthaul as sh
    >>> convolve = sh.relational.GCNConv(8, 4)
    >>> convolve(torch.randn(3, 8), torch.tensor([[0, 0, 1], [1, 2, 2]])).shape
    torch.Size([3, 4])

    Args:
        in_channels: Width of the features.
        out_channels: Width of the result.
        improved: Whether added loops weigh 2, where edges have weights (default False).
        cached: Not needed, as a graph is indexed once: degrees are those of the call's edges
            (default False).
        add_self_loops: Whether nodes without a loop get one; None (default) as `normalize`.
        normalize: Whether messages are divided by the roots of degrees (default True).
        bias: Whether the layer has a bias (default True).
        aggr: `"add"` (default), `"mean"`, `"max"` or `"min"`.
    """

    takes_pairs = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        aggr: str = "add",
    ) -> None:
        super().__init__()
        require_aggregation(aggr)
        self.widths = read_pair(in_channels)
        loops = normalize if add_self_loops is None else add_self_loops
        if loops and not normalize:
            raise LayerArgumentError(
                "loops are added to a graph that is not normalized", "leave add_self_loops out"
            )
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.improved, self.cached, self.normalize = improved, cached, normalize
        self.add_self_loops = loops
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.trace_options()
        self.reset_parameters()

    def read_options(self) -> tuple[Any, ...]:
        """See the base class."""
        return (self.normalize,)

    def make_functions(self) -> None:
        """See the base class."""
        self.functions = {weighted: self._compile(weighted) for weighted in (False, True)}
        self.alone: dict[bool, Any] = {}  # for models of many relations, when one asks
        self.function = self.functions[False]

    def _compile(self, is_weighted: bool, *, alone: bool = False) -> Any:
        absent = set() if is_weighted else {"weight"}
        if self.bias is None or alone:
            absent.add("bias")
        sizes = {"width": self.widths[0], "out": self.out_channels}
        options = {"aggr": self.aggr, "normalize": self.normalize and not alone}
        return gcn.compile(sizes, options, absent)

    def reset_parameters(self) -> None:
        """PyG's initial values: Glorot's, and zero for the bias."""
        glorot(self.lin.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self, x: torch.Tensor, edge_index: Any, edge_weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """New features of the nodes.

        Args:
            x: Node features.
            edge_index: (2, edges), a sparse `adj_t`, whose values are weights, or a graph.
            edge_weight: A number per edge; None (default) for ones, or for the values of `adj_t`.
        """
        stay_alone_after_fork()
        self.follow_options()
        require_one_set(x, self)
        edge_index, edge_weight, form = read_adjacency(edge_index, edge_weight)
        given = self.read(x, edge_index)
        count, graph = given.sources.shape[0], given.graph
        if self.normalize and given.num_targets not in (None, count):
            raise LayerArgumentError(
                "a block was given to GCNConv, which divides by degrees of sources that it does not know",
                "pass the edges of the block with all of its nodes: `block.edge_index()`",
            )
        weight = read_edge_weight(edge_weight, graph)
        if self.add_self_loops:
            fill = 2.0 if self.improved else 1.0
            if form != "edges" and weight is None and _counts_loops(graph, fill):
                weight = given.sources.new_ones(graph.num_edges)
            if weight is not None:
                edges = edges_of(graph, weight.device)
                weight = _fill_loop_weights(edges, weight, count, fill, form)
            graph = add_loops(graph, count, given.num_targets)
        tensors = {"x": given.sources, "lin": self.lin.weight.t()}
        if weight is not None:
            tensors["weight"] = weight
        if self.bias is not None:
            tensors["bias"] = self.bias
        out: torch.Tensor = self.functions[weight is not None](
            graph, tensors, training=self.training, num_targets=given.num_targets
        )
        return out

    def message_function(self, *, is_weighted: bool) -> Any:
        """See the base class: what messages are divided by is a weight of their edges here."""
        self.follow_options()
        has_weights = is_weighted or self.normalize
        if has_weights not in self.alone:
            self.alone[has_weights] = self._compile(has_weights, alone=True)
        return self.alone[has_weights]

    def message_values(
        self,
        edges: torch.Tensor,
        values: torch.Tensor | None,
        ends: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """See the base class: a weight per edge and loop, divided by the roots of both ends' degrees.

        Args:
            edges: (2, edges and loops).
            values: Those that edges came with; None where they came with none.
            ends: The features of sources and of targets.
        """
        rows = ends[0]
        count = len(rows)
        if not self.normalize:
            assert values is not None  # else the program reads none
            return values.reshape(-1)
        if values is not None:
            weight = values.reshape(-1)
            if self.add_self_loops:
                fill = 2.0 if self.improved else 1.0
                weight = _fill_loop_weights(edges, weight, count, fill, "edges")
                edges = replace_loops(edges, count)
            return _divide_by_degrees(edges, weight, count)

        def make() -> torch.Tensor:
            with torch.inference_mode(False):  # they are kept for calls that train, too
                given = replace_loops(edges, count) if self.add_self_loops else edges
                ones = torch.ones(given.shape[1], dtype=rows.dtype, device=rows.device)
                return _divide_by_degrees(given, ones, count)

        return keep_graph(("degrees", count, self.add_self_loops, rows.dtype), [edges], make)

    def own_terms(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """See the base class."""
        return None, self.bias

    def weights(self) -> dict[str, torch.Tensor]:
        """What the messages are made with, by the names of the program."""
        return {"lin": self.lin.weight.t()}


def _divide_by_degrees(edges: torch.Tensor, weight: torch.Tensor, count: int) -> torch.Tensor:
    """Each weight, divided by the roots of the sums of weights that come to its edge's two ends."""
    source, target = edges.long()
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))  # a sum of many ones
    degree = wide.new_zeros(count).index_add(0, target, wide)
    is_zero = degree == 0  # then nothing is divided
    share = torch.where(is_zero, 0.0, torch.where(is_zero, 1.0, degree).rsqrt())
    return (share[source] * share[target] * wide).to(weight.dtype)


def _counts_loops(graph: Any, fill: float) -> bool:
    """Whether loops of an adjacency of ones weigh something else than one."""
    return fill != 1 or bool((graph.source == graph.target).any())


def _fill_loop_weights(
    edges: torch.Tensor, weight: torch.Tensor, count: int, fill: float, form: str
) -> torch.Tensor:
    """The weights of `replace_loops`; `form` says what a loop that was there weighs."""
    is_loop = edges[0] == edges[1]
    loops = weight.new_full((count,), fill)
    if form != "SparseTensor":
        places = (edges[0][is_loop].long(),)
        loops = loops.index_put(places, weight[is_loop], accumulate=form == "adjacency")
    return torch.cat([weight[~is_loop], loops])
