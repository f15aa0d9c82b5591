"""Graph convolution of higher order (Morris et al.) as a program with one relation, with PyG's parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.compiled_layer import layer
from shorthaul.relational.frontend.declarations import (
    EdgeFeature,
    NodeFeature,
    TargetFeature,
    Weight,
)
from shorthaul.relational.frontend.language import linear
from shorthaul.relational.layers.homogeneous.base import (
    REDUCTIONS,
    HomogeneousConv,
    read_adjacency,
    read_edge_weight,
    read_pair,
    require_aggregation,
)


@layer
def graph_conv(
    g: Any,
    x: NodeFeature("width"),
    neighbors: Weight("width", "out"),
    weight: EdgeFeature() = None,
    other: TargetFeature("target_width") = None,
    own: Weight("target_width", "out") = None,
    bias: Weight("out") = None,
    *,
    aggr: str,
) -> Any:
    """The neighbors' sum, each times its edge's weight, and the node itself, each times a matrix."""
    for n in g.target_nodes():
        for e in n.incoming_edges():
            message = e.source.x if weight is None else e.source.x * e.weight.reshape(1)
            n.heard = REDUCTIONS[aggr](message)
        n.out = linear(n.heard, neighbors)
        if own is not None:
            n.out = n.out + linear(n.x if other is None else n.other, own)
        if bias is not None:
            n.out = n.out + bias
    return n.out


class GraphConv(HomogeneousConv):
    """PyG's `GraphConv` with aggr add, mean, max or min: same arguments, parameters and numbers; compiled.

    >>> import torch, shorthaul as sh
    >>> convolve = sh.relational.GraphConv(8, 4)
    >>> edge_index, weight = torch.tensor([[0, 0, 1], [1, 2, 2]]), torch.ones(3)
    >>> convolve(torch.randn(3, 8), edge_index, weight).shape
    torch.Size([3, 4])

    Args:
        in_channels: Width of the features, or (of sources, of targets).
        out_channels: Width of the result.
        aggr: `"add"` (default), `"mean"`, `"max"` or `"min"`.
        bias: Whether the layer has a bias (default True).
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str = "add",
        bias: bool = True,
    ) -> None:
        super().__init__()
        require_aggregation(aggr)
        self.widths = read_pair(in_channels)
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.lin_rel = nn.Linear(self.widths[0], out_channels, bias=bias)
        self.lin_root = nn.Linear(self.widths[1], out_channels, bias=False)
        # By how targets come (with sources, apart, without features), and with weights or not.
        self.functions = {
            (targets, is_weighted): self._compile(targets, is_weighted=is_weighted)
            for targets in ("joined", "apart", "none")
            for is_weighted in (False, True)
        }
        self.alone: dict[bool, Any] = {}  # for models of many relations, when one asks
        self.function = self.functions["joined", False]

    def _compile(self, targets: str, *, is_weighted: bool, alone: bool = False) -> Any:
        absent = set() if is_weighted else {"weight"}
        if targets != "apart":
            absent.add("other")
        if targets == "none":
            absent.add("own")
        if self.lin_rel.bias is None or alone:
            absent.add("bias")
        sizes = {"width": self.widths[0], "target_width": self.widths[1], "out": self.out_channels}
        if targets == "joined":
            sizes["target_width"] = sizes[
                "width"
            ]  # widths that differ are refused when it is called
        return graph_conv.compile(sizes, {"aggr": self.aggr}, absent)

    def reset_parameters(self) -> None:
        """PyG's initial values, which are PyTorch's."""
        for each in (self.lin_rel, self.lin_root):
            each.reset_parameters()

    def forward(
        self,
        x: Any,
        edge_index: Any,
        edge_weight: torch.Tensor | None = None,
        size: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """New features of the nodes.

        Args:
            x: Node features, or those of sources and of targets.
            edge_index: (2, edges), a sparse `adj_t`, whose values are weights, or a graph.
            edge_weight: A number per edge; None (default) for ones, or for the values of `adj_t`.
            size: Numbers of sources and targets; None (default) reads them off `x`.
        """
        stay_alone_after_fork()
        edge_index, edge_weight, _ = read_adjacency(edge_index, edge_weight)
        given = self.read(x, edge_index, size)
        tensors = self.weights() | {"x": given.sources}
        weight = read_edge_weight(edge_weight, given.graph)
        if weight is not None:
            tensors["weight"] = weight
        if self.lin_rel.bias is not None:
            tensors["bias"] = self.lin_rel.bias
        targets = "joined" if isinstance(x, torch.Tensor) else "none"
        if given.targets is not None:
            targets, tensors["other"] = "apart", given.targets
        if targets != "none":
            tensors["own"] = self.lin_root.weight.t()
        function = self.functions[targets, weight is not None]
        out: torch.Tensor = function(
            given.graph, tensors, training=self.training, num_targets=given.num_targets
        )
        return out

    def message_function(self, *, is_weighted: bool) -> Any:
        """See the base class."""
        found = self.alone.get(is_weighted)
        if found is None:
            found = self.alone[is_weighted] = self._compile(
                "none", is_weighted=is_weighted, alone=True
            )
        return found

    def message_values(
        self,
        edges: torch.Tensor,  # noqa: ARG002
        values: torch.Tensor | None,
        ends: tuple[torch.Tensor, torch.Tensor],  # noqa: ARG002
    ) -> torch.Tensor:
        """See the base class: a weight per edge.

        Args:
            edges: (2, edges and loops).
            values: Those that edges came with; None where they came with none.
            ends: The features of sources and of targets.
        """
        assert values is not None
        return values.reshape(-1)

    def own_terms(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """See the base class."""
        return self.lin_root.weight, self.lin_rel.bias

    def weights(self) -> dict[str, torch.Tensor]:
        """What the messages are made with, by the names of the program."""
        return {"neighbors": self.lin_rel.weight.t()}

    def extra_repr(self) -> str:
        """Widths and aggregation."""
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr}"
