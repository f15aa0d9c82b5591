"""Graph isomorphism network (Xu et al.) as a program with one relation, with PyG's parameters."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.compiled_layer import LayerDefinition, layer
from shorthaul.relational.frontend.declarations import NodeFeature, TargetFeature, Weight
from shorthaul.relational.inputs.graph import read_input
from shorthaul.relational.layers.homogeneous.base import (
    REDUCTIONS,
    HomogeneousConv,
    require_aggregation,
)
from shorthaul.relational.layers.homogeneous.network import Map, Network, read_network


@layer
def gin(
    g: Any,
    x: NodeFeature("width"),
    other: TargetFeature("width") = None,
    eps: Weight(1) = None,
    *,
    aggr: str,
) -> Any:
    """The neighbors' sum, and the node itself, once and `eps` times."""
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.heard = REDUCTIONS[aggr](e.source.x)
        n.out = n.heard
        if eps is not None:
            n.out = n.out + (n.x if other is None else n.other) * (eps + 1.0)
    return n.out


def define_gin(network: Network) -> LayerDefinition:
    """GIN with its network, for models of many relations: a target is one of the sources of its sum.

    So it hears something from every relation, also where it has no edge of one.
    """

    def gin_with_network(g: Any, x: Any, other: Any, eps: Any, **weights: Any) -> Any:
        for n in g.target_nodes():
            for e in n.incoming_edges():
                n.heard += e.source.x
            n.out = network.follow(n.heard + n.other * eps, weights)
        return n.out

    width = network.maps[0].weight.shape[1]
    declared = {"x": NodeFeature(width), "other": TargetFeature(width), "eps": Weight(1)}
    maps = [each for each in network.steps if isinstance(each, Map)]
    for number, each in enumerate(maps, start=1):
        declared[f"map_{number}"] = Weight(each.width, each.out)
        if each.has_bias:
            declared[f"bias_{number}"] = Weight(each.out)
    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("g", keyword)]
    parameters += [
        inspect.Parameter(name, keyword, annotation=each) for name, each in declared.items()
    ]
    gin_with_network.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return LayerDefinition(gin_with_network)


class GINConv(HomogeneousConv):
    """PyG's `GINConv` with aggr add, mean, max or min: same arguments, parameters and numbers; compiled.

    The sums are compiled; `nn`, which may be any module, is called with them.

    >>> import torch, shorthaul as sh
    >>> convolve = sh.relational.GINConv(torch.nn.Linear(8, 4))
    >>> convolve(torch.randn(3, 8), torch.tensor([[0, 0, 1], [1, 2, 2]])).shape
    torch.Size([3, 4])

    Args:
        nn: What is made of the sums: a module.
        eps: How much more a node counts than its neighbors (default 0).
        train_eps: Whether that is learned (default False).
        aggr: `"add"` (default), `"mean"`, `"max"` or `"min"`.
    """

    def __init__(
        self, nn: nn.Module, eps: float = 0.0, train_eps: bool = False, aggr: str = "add"
    ) -> None:
        super().__init__()
        require_aggregation(aggr)
        self.nn, self.initial_eps, self.aggr = nn, eps, aggr
        start = torch.full((1,), float(eps), device="cpu", dtype=torch.get_default_dtype())
        if train_eps:
            self.eps = torch.nn.Parameter(start)
        else:
            self.register_buffer("eps", start)
        # By the width of the features, and how targets come: with sources, apart, without features.
        self.functions: dict[tuple[int, str], Any] = {}
        self.alone: dict[Any, Any] = {}  # by the steps of `nn`; for models of many relations

    def reset_parameters(self) -> None:
        """Fresh values of `nn`, where its modules make them, and the first `eps`."""
        for each in self.nn.modules():
            reset = getattr(each, "reset_parameters", None)
            if reset is not None:
                reset()
        with torch.no_grad():
            self.eps.fill_(self.initial_eps)

    def forward(self, x: Any, edge_index: Any, size: tuple[int, int] | None = None) -> torch.Tensor:
        """New features of the nodes.

        Args:
            x: Node features, or those of sources and of targets.
            edge_index: (2, edges), or a graph.
            size: Numbers of sources and targets; None (default) reads them off `x`.
        """
        stay_alone_after_fork()
        given = read_input(x, edge_index, None, 1, size)
        tensors = {"x": given.sources}
        targets = "joined" if isinstance(x, torch.Tensor) else "none"
        if given.targets is not None:
            targets, tensors["other"] = "apart", given.targets
        if targets != "none":
            tensors["eps"] = self.eps
        function = self._function(given.sources.shape[1], targets)
        summed = function(
            given.graph, tensors, training=self.training, num_targets=given.num_targets
        )
        made: torch.Tensor = self.nn(summed)
        return made

    def _function(self, width: int, targets: str) -> Any:
        found = self.functions.get((width, targets))
        if found is None:
            absent = {"joined": {"other"}, "apart": set(), "none": {"other", "eps"}}[targets]
            found = gin.compile({"width": width}, {"aggr": self.aggr}, absent)
            self.functions[width, targets] = found
        return found

    def message_function(self, *, is_weighted: bool) -> Any:
        """See the base class: with `nn`, where that is linear maps and activations."""
        if is_weighted:
            return "GINConv takes no values of edges"
        if self.aggr not in ("add", "sum"):
            return f"GINConv(aggr={self.aggr!r}) keeps what is heard apart from the target"
        network = read_network(self.nn)
        if isinstance(network, str):
            return network
        if network.steps not in self.alone:
            self.alone[network.steps] = define_gin(network).compile({}, {})
        return self.alone[network.steps]

    def message_loops(self) -> str | None:
        """See the base class."""
        return "added"

    @property
    def widths(self) -> tuple[int, int]:
        """Of sources and of targets, where `nn` is linear maps and activations."""
        width = self._read_network().maps[0].weight.shape[1]
        return width, width

    def weights(self) -> dict[str, torch.Tensor]:
        """What the messages are made with, by the names of the program."""
        found: dict[str, torch.Tensor] = {"eps": self.eps}
        for number, each in enumerate(self._read_network().maps, start=1):
            found[f"map_{number}"] = each.weight.t()
            if each.bias is not None:
                found[f"bias_{number}"] = each.bias
        return found

    def _read_network(self) -> Network:
        network = read_network(self.nn)
        assert isinstance(network, Network)
        return network

    def explain(self, **options: Any) -> str:
        """Every stage, once the layer was called; `graph`, `stage`, `machine` and `picture` as of
        `CompiledLayer.explain`.
        """
        called = [each for each in self.functions.values() if each.last_call is not None]
        function = called[-1] if called else self._function(1, "joined")
        text: str = function.explain(**options)
        return text

    def extra_repr(self) -> str:
        """Aggregation."""
        return f"aggr={self.aggr}"
