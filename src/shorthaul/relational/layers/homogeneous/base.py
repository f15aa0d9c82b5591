"""What the layers of one relation have in common: how they are called, and how they are told of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.relational.frontend.language import reduce_max, reduce_mean, reduce_min, reduce_sum
from shorthaul.relational.inputs.graph import (
    LayerInput,
    glorot,
    read_input,
    require_widths,
    split_adjacency,
)
from shorthaul.relational.inputs.kept_graphs import keep_graph
from shorthaul.relational.inputs.self_loops import Fill, replace_loop_features
from shorthaul.relational.layers.options import TracedLayer

REDUCTIONS = {
    "mean": reduce_mean,
    "add": reduce_sum,
    "sum": reduce_sum,
    "max": reduce_max,
    "min": reduce_min,
}


def require_aggregation(aggr: str) -> None:
    """Raise unless `aggr` is a reduction over edges."""
    if aggr not in REDUCTIONS:
        raise LayerArgumentError(f"aggr is {aggr!r}", f"it is one of {', '.join(REDUCTIONS)}")


def read_aggregations(aggr: str | Sequence[str]) -> tuple[str, ...]:
    """One reduction over edges, or several, in their order."""
    found = tuple(aggr) if isinstance(aggr, list | tuple) else (aggr,)
    if not found:
        raise LayerArgumentError("aggr is empty", f"name one or several of {', '.join(REDUCTIONS)}")
    for each in found:
        require_aggregation(each)
    return found


def read_pair(in_channels: int | tuple[int, int]) -> tuple[int, int]:
    """Widths of sources and of targets."""
    require_widths(in_channels)
    if isinstance(in_channels, int):
        return in_channels, in_channels
    return in_channels[0], in_channels[1]


class HomogeneousConv(TracedLayer):
    """A layer of one relation: `x` is one tensor, or a pair where sources are apart from targets."""

    in_channels: int | tuple[int, int]
    out_channels: int
    takes_pairs = True  # whether sources and targets may be apart
    add_self_loops = False
    fill_value: Fill  # of those loops, where edges have attributes

    def weights(self) -> dict[str, torch.Tensor]:
        """What messages are made with, by the names of the program."""
        raise NotImplementedError

    def message_function(self, *, is_weighted: bool) -> Any:  # noqa: ARG002
        """What targets hear, apart from their sources, and nothing else: no bias, no own features.

        Where the layer does more with it than to add, a sentence that says so: then it is called as a
        whole. `is_weighted` is whether edges come with values.
        """
        return "its layer has no program of its messages"

    def message_loops(self) -> str | None:
        """Which edges from targets to themselves the messages want; see `Loops`, None for none."""
        return "replaced" if self.add_self_loops else None

    def message_values(
        self,
        edges: torch.Tensor,
        values: torch.Tensor | None,
        ends: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """What the program of the messages reads per edge and loop: here, rows of attributes of edges.

        Args:
            edges: (2, edges and loops).
            values: Those that edges came with; None where they came with none.
            ends: The features of sources and of targets.
        """
        assert values is not None
        rows = values.unsqueeze(1) if values.dim() == 1 else values.flatten(1)
        if not self.add_self_loops:
            return rows
        return replace_loop_features(edges, rows, min(map(len, ends)), self.fill_value)

    def own_terms(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """What every target is given besides: its features times a matrix (out, in), and a bias."""
        return None, None

    def read(self, x: Any, edge_index: Any, size: Any = None) -> LayerInput:
        """The graph and features of a call; widths of targets that do not fit are an error."""
        if isinstance(x, torch.Tensor) and isinstance(self.in_channels, tuple | list):
            source, target = self.in_channels
            if source != target:
                raise LayerArgumentError(
                    f"the layer was made for sources and targets of widths {self.in_channels}",
                    "pass a pair of features: (sources, targets)",
                )
        return read_input(x, edge_index, None, 1, size)

    def explain(self, **options: Any) -> str:
        """Every stage; `graph`, `stage`, `machine` and `picture` as of `CompiledLayer.explain`."""
        text: str = self.function.explain(**options)
        return text

    def extra_repr(self) -> str:
        """Widths, and heads where there are any."""
        heads = f", heads={self.heads}" if hasattr(self, "heads") else ""
        return f"{self.in_channels}, {self.out_channels}{heads}"


def require_targets(given: LayerInput, x: Any) -> torch.Tensor:
    """The features of targets: their own, or the first rows of all nodes."""
    if isinstance(x, torch.Tensor):
        return given.sources[: given.num_targets]
    if given.targets is None:
        raise LayerArgumentError("targets have no features", "pass (sources, targets)")
    return given.targets


class WeightedEdges(NamedTuple):
    """Edges as an `edge_index`, with what a sparse adjacency says of their weights."""

    edge_index: Any
    weight: torch.Tensor | None
    # What becomes of the weight of a loop where one is put at every node: it is kept ("edges"); in an
    # adjacency, which has one number for each pair, it is added to ("adjacency") or replaced ("SparseTensor").
    form: str


def read_adjacency(edge_index: Any, weight: torch.Tensor | None) -> WeightedEdges:
    """The weights that a sparse `adj_t` has as values; those that are given besides stand instead."""
    if isinstance(edge_index, torch.Tensor):
        form = "edges" if edge_index.layout is torch.strided else "adjacency"
    else:
        form = "SparseTensor" if hasattr(edge_index, "coo") else "edges"
    if form == "edges" or torch.compiler.is_compiling():
        return WeightedEdges(edge_index, weight, "edges")
    ends, values = split_adjacency(edge_index)
    # One tensor for as long as the adjacency lives, so that its graph is found again.
    ends = keep_graph(("ends",), [edge_index], lambda: ends)
    if weight is None and values is not None:
        is_plain = not values.requires_grad and bool((values == 1).all())
        weight = None if is_plain else values
    return WeightedEdges(ends, weight, form)


def read_edge_weight(weight: torch.Tensor | None, graph: Any) -> torch.Tensor | None:
    """(edges,) of one number per edge."""
    if weight is None:
        return None
    if weight.numel() != graph.num_edges:
        raise LayerArgumentError(
            f"edge_weight is {tuple(weight.shape)}, but there are {graph.num_edges:,} edges",
            "give one number per edge",
        )
    return weight.reshape(-1)


def start_linear(*maps: Any) -> None:
    """Glorot's values for matrices, zero for biases, as PyG starts attention."""
    for each in maps:
        if each is not None:
            glorot(each.weight)
            if each.bias is not None:
                nn.init.zeros_(each.bias)
