"""GraphSAGE (Hamilton et al.) as a program with one relation, with PyG's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.compiled_layer import layer
from shorthaul.relational.frontend.declarations import NodeFeature, Weight
from shorthaul.relational.frontend.language import concat, linear
from shorthaul.relational.inputs.graph import read_input
from shorthaul.relational.layers.homogeneous.base import (
    REDUCTIONS,
    HomogeneousConv,
    read_aggregations,
    read_pair,
)


@layer
def sage(
    g: Any,
    x: NodeFeature("width"),
    neighbors: Weight("heard", "out"),
    own: Weight("width", "out") = None,
    bias: Weight("out") = None,
    *,
    aggregations: Sequence[str],
) -> Any:
    """The neighbors' mean, or several of their aggregations, and the node itself, each times a matrix."""
    for n in g.target_nodes():
        for e in n.incoming_edges():
            heard = [REDUCTIONS[each](e.source.x) for each in aggregations]
            n.heard = heard[0] if len(heard) == 1 else concat(*heard)
        n.out = linear(n.heard, neighbors)
        if own is not None:
            n.out = n.out + linear(n.x, own)
        if bias is not None:
            n.out = n.out + bias
    return n.out


class SAGEConv(HomogeneousConv):
    """PyG's `SAGEConv` with aggr mean, add, max or min, or several: same arguments and numbers; compiled.

    Sources and targets may be apart: `in_channels=(source width, target width)` and a pair of
    features.

    >>> import torch, shorthaul as sh
    >>> sage = sh.relational.SAGEConv(8, 4)
    >>> sage(torch.randn(3, 8), torch.tensor([[0, 0, 1], [1, 2, 2]])).shape
    torch.Size([3, 4])

    Args:
        in_channels: Width of the features, or (of sources, of targets).
        out_channels: Width of the result.
        aggr: `"mean"` (default), `"add"`, `"max"` or `"min"`, or a list of such, whose results are put
            side by side.
        normalize: Whether each row of the result has length one (default False).
        root_weight: Whether a linear map of the target is added to its result (default True).
        project: Whether sources pass a linear layer and a ReLU first (default False).
        bias: Whether the layer has a bias (default True).
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str | Sequence[str] = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.aggregations = read_aggregations(aggr)
        widths = self.widths = read_pair(in_channels)
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        self.is_alike = widths[0] == widths[1]
        self.lin = nn.Linear(widths[0], widths[0]) if project else None
        heard = widths[0] * len(self.aggregations)
        self.lin_l = nn.Linear(heard, out_channels, bias=bias)
        self.lin_r = nn.Linear(widths[1], out_channels, bias=False) if root_weight else None
        absent = set() if bias else {"bias"}
        sizes = self.sizes = {"width": widths[0], "heard": heard, "out": out_channels}
        options = self.options = {"aggregations": self.aggregations}
        self.alone: Any = None  # for models of many relations, when one asks
        alone = set() if root_weight and not project and self.is_alike else {"own"}
        self.function = sage.compile(sizes, options, absent | alone)
        self.apart = sage.compile(sizes, options, absent | {"own"})

    def reset_parameters(self) -> None:
        """PyG's initial values, which are PyTorch's."""
        for each in (self.lin, self.lin_l, self.lin_r):
            if each is not None:
                each.reset_parameters()

    def forward(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor | None],
        edge_index: Any,
        size: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """New features of the nodes.

        Args:
            x: Node features, or those of sources and of targets.
            edge_index: (2, edges), or a graph.
            size: Numbers of sources and targets; None (default) reads them off `x`.
        """
        stay_alone_after_fork()
        if isinstance(x, torch.Tensor) and self.lin_r is not None and not self.is_alike:
            raise LayerArgumentError(
                f"the layer was made for sources and targets of widths {self.in_channels}",
                "pass a pair of features: (sources, targets)",
            )
        found = read_input(x, edge_index, None, 1, size)
        heard, own = found.sources, found.targets
        is_joined = isinstance(x, torch.Tensor)
        if self.lin is not None:  # what is heard is no longer what a node is
            own = heard[: found.num_targets] if is_joined else own
            heard, is_joined = self.lin(heard).relu(), False
        tensors = {"x": heard, "neighbors": self.lin_l.weight.t()}
        if self.lin_l.bias is not None:
            tensors["bias"] = self.lin_l.bias
        if self.lin_r is not None and is_joined:
            tensors["own"] = self.lin_r.weight.t()
        function = self.function if is_joined else self.apart
        out: torch.Tensor = function(
            found.graph, tensors, training=self.training, num_targets=found.num_targets
        )
        if self.lin_r is not None and own is not None:
            out = out + self.lin_r(own)
        return nn.functional.normalize(out) if self.normalize else out

    def weights(self) -> dict[str, torch.Tensor]:
        """What the messages are made with, by the names of the program."""
        return {"neighbors": self.lin_l.weight.t()}

    def message_function(self, *, is_weighted: bool) -> Any:
        """See the base class."""
        if is_weighted:
            return "SAGEConv takes no values of edges"
        if self.normalize or self.project:
            return f"its layer has {'normalize' if self.normalize else 'project'}=True"
        if self.alone is None:
            self.alone = sage.compile(self.sizes, self.options, {"own", "bias"})
        return self.alone

    def own_terms(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """See the base class."""
        return None if self.lin_r is None else self.lin_r.weight, self.lin_l.bias

    def extra_repr(self) -> str:
        """Widths and aggregation."""
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr}"
