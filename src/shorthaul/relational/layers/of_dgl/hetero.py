"""A layer for each relation of a DGL graph: DGL's `HeteroGraphConv`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.inputs.dgl_edges import find_edges
from shorthaul.relational.layers.called import has_hooks
from shorthaul.relational.layers.of_dgl.gat import DGLGATConv
from shorthaul.relational.layers.of_dgl.graph_conv import DGLGraphConv
from shorthaul.relational.layers.of_dgl.sage import DGLSAGEConv

AGGREGATES = ("sum", "mean", "max", "min", "stack")
_OURS = (DGLSAGEConv, DGLGATConv, DGLGraphConv)  # which take edges in place of a graph
Aggregate = Callable[[list[torch.Tensor], str], Any]


class DGLHeteroGraphConv(nn.Module):
    """DGL's `HeteroGraphConv`: relations whose layers are ours are indexed once for a graph, not for a call.

    Args:
        mods: A layer for each relation, by its name or by (source type, name, target type).
        aggregate: How a type's results of several relations become one: `"sum"` (default), `"mean"`,
            `"max"`, `"min"`, `"stack"`, or a function of the results and the type.
    """

    def __init__(self, mods: Mapping[Any, nn.Module], aggregate: str | Aggregate = "sum") -> None:
        super().__init__()
        if isinstance(aggregate, str) and aggregate not in AGGREGATES:
            raise LayerArgumentError(
                f"aggregate is {aggregate!r}",
                f"it is one of {', '.join(AGGREGATES)}, or a function",
            )
        self.mod_dict = dict(mods)
        self.mods = nn.ModuleDict({str(name): each for name, each in mods.items()})
        for each in self.mods.values():  # a relation of many does not reach every node
            allow = getattr(each, "set_allow_zero_in_degree", None)
            if callable(allow):
                allow(True)
        self.agg_fn: Aggregate = (
            functools.partial(_aggregate, aggregate) if isinstance(aggregate, str) else aggregate
        )

    def forward(
        self,
        g: Any,
        inputs: Any,
        mod_args: Mapping[str, Sequence[Any]] | None = None,
        mod_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """New features by type of nodes.

        Args:
            g: A DGL graph or block of several types.
            inputs: Features by type, or those of sources and of targets.
            mod_args: What else the layers take by place, by relation's name; None (default) for
                nothing.
            mod_kwargs: What else they take by name; None (default) for nothing.
        """
        stay_alone_after_fork()
        sources = inputs[0] if isinstance(inputs, tuple) else inputs
        targets = inputs[1] if isinstance(inputs, tuple) else inputs
        if g.is_block and not isinstance(inputs, tuple):
            targets = {name: rows[: g.num_dst_nodes(name)] for name, rows in inputs.items()}
        reached: dict[str, list[Any]] = {name: [] for name in g.dsttypes}
        for relation in g.canonical_etypes:
            source, name, target = relation
            if source not in sources or target not in targets:
                continue
            layer = self._find(relation)
            reached[target].append(
                layer(
                    self._choose_graph(g, relation, layer),
                    (sources[source], targets[target]),
                    *(mod_args or {}).get(name, ()),
                    **(mod_kwargs or {}).get(name, {}),
                )
            )
        return {name: self.agg_fn(found, name) for name, found in reached.items() if found}

    def _find(self, relation: tuple[str, str, str]) -> nn.Module:
        found = self.mod_dict.get(relation)
        return self.mod_dict[relation[1]] if found is None else found

    def _choose_graph(self, g: Any, relation: tuple[str, str, str], layer: nn.Module) -> Any:
        """The relation's edges where our layer takes them; its graph for others, and for who looks on."""
        if isinstance(layer, _OURS) and not has_hooks(layer):
            return find_edges(g, relation)
        return g[relation]


def _aggregate(name: str, results: list[torch.Tensor], kind: str) -> torch.Tensor:
    """One result of a type's, as DGL makes it."""
    if name == "stack":
        return torch.stack(results, dim=1)
    stacked = torch.stack(results, dim=0)
    if name in ("sum", "mean"):
        return stacked.sum(0) if name == "sum" else stacked.mean(0)
    # Not amax: the gradient goes to one of equal results.
    return (stacked.max(0) if name == "max" else stacked.min(0)).values
