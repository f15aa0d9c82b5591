"""How a sampler takes neighbors, as users write it and as the kernels read it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs.attached_data import join_relations
from shorthaul.graphs.edge_tensors import as_plain, numbers_at, read_numbers, share_column
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.sampling.candidates.arranging import Arranged, arrange_rows
from shorthaul.tensors import UnifiedTensor

STRATEGIES = ("uniform", "weighted", "last", "labor")
NO_TIME = -(2**63)  # of a node or an edge that was always there


@dataclass(frozen=True, eq=False)
class Rule:
    """What makes a candidate a neighbor: chance, weight, time.

    `weights` and `edge_times` have an entry for each edge in the order of the edge ids, `node_times`
    one for each node. They lie where the user left them, in memory or on disk.
    """

    strategy: str = "uniform"
    replace: bool = False
    disjoint: bool = False
    includes_equal: bool = True
    weights: torch.Tensor | None = None
    node_times: torch.Tensor | None = None
    edge_times: torch.Tensor | None = None

    @property
    def is_temporal(self) -> bool:
        """Whether a seed sees only what is not later than itself."""
        return self.node_times is not None or self.edge_times is not None

    @property
    def is_plain(self) -> bool:
        """Whether nothing but the graph's own index is looked at."""
        return self.weights is None and not self.is_temporal and self.strategy != "labor"

    @property
    def numbers(self) -> tuple[int, bool, bool]:
        """Strategy, replacement and equal times, as a kernel takes them."""
        return STRATEGIES.index(self.strategy), self.replace, self.includes_equal

    def find_times(self, edges: torch.Tensor, sources: torch.Tensor) -> torch.Tensor:
        """When each candidate came to be: its edge, and the node at the other end."""
        found = [
            numbers_at(column, ids).long()
            for column, ids in ((self.edge_times, edges), (self.node_times, sources))
            if column is not None
        ]
        return found[0] if len(found) == 1 else torch.maximum(*found)

    def find_weights(self, edges: torch.Tensor) -> torch.Tensor:
        """The weights of `edges` as float64; `SamplingError` names one that is none."""
        assert self.weights is not None
        weights = numbers_at(self.weights, edges).double()
        wrong = torch.nonzero(~((weights >= 0) & torch.isfinite(weights)))
        if wrong.numel():
            at = int(wrong[0])
            raise SamplingError(
                f"the weight of edge {int(edges[at]):,} is {float(weights[at])}; weights must be finite "
                "and not negative (0 for an edge that is never taken)."
            )
        return weights

    def arrange(self, graph: RelationalGraph, *, by_relation: bool) -> Arranged | None:
        """What is known of all candidates; `None` where the graph's index lies on disk."""
        index = graph.by_target()
        columns = (index.pointers, index.sources, index.edges)
        if any(isinstance(each, UnifiedTensor) and each.kind == "disk" for each in columns):
            return None
        if self.weights is None and not self.is_temporal:
            return Arranged()
        pointers, sources, edges = map(as_plain, columns)
        return arrange_rows(
            pointers.long(),
            graph.index_dtype,
            relations=as_plain(index.relations) if by_relation else None,
            times=self.find_times(edges, sources) if self.is_temporal else None,
            weights=None if self.weights is None else self.find_weights(edges),
        )


def read_rule(
    graph: RelationalGraph,
    strategy: str,
    *,
    replace: bool,
    disjoint: bool | None,
    includes_equal: bool,
    weights: Any,
    node_times: Any,
    edge_times: Any,
) -> Rule:
    """A rule whose parts fit each other and the graph.

    >>> graph = RelationalGraph.from_edges([0, 1], [1, 0])
    >>> nothing = dict(replace=False, disjoint=None, includes_equal=True, weights=None)
    >>> rule = read_rule(graph, "last", **nothing, node_times=[3, 4], edge_times=None)
    >>> rule.disjoint, rule.is_temporal
    (True, True)
    """
    if strategy not in STRATEGIES:
        raise SamplingError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}.")
    if weights is not None and strategy == "uniform":
        strategy = "weighted"
    if strategy == "weighted" and weights is None:
        weights = "weight"
    if weights is not None and strategy != "weighted":
        raise SamplingError(f"strategy is {strategy!r}, which does not look at weights.")
    rule = Rule(
        strategy,
        bool(replace),
        bool(disjoint),
        bool(includes_equal),
        read_column(graph, weights, "weights", "edges", is_whole=False),
        read_column(graph, node_times, "node_times", "nodes"),
        read_column(graph, edge_times, "edge_times", "edges"),
    )
    if strategy == "last" and not rule.is_temporal:
        raise SamplingError(
            "strategy 'last' takes the latest neighbors: give node_times or edge_times."
        )
    if replace and strategy in ("last", "labor"):
        raise SamplingError(f"strategy {strategy!r} takes each neighbor once: leave `replace` out.")
    if not rule.is_temporal:
        return rule
    if strategy == "labor":
        raise SamplingError(
            "strategy 'labor' lets targets share their neighbors, and with times every seed has a tree of "
            "its own: use 'uniform' or 'last'."
        )
    if disjoint is False:
        raise SamplingError(
            "with times every seed has a tree of its own, as seeds of different times see different "
            "neighbors: leave `disjoint` out."
        )
    return dataclasses.replace(rule, disjoint=True)


def read_seed_times(rule: Rule, seeds: torch.Tensor, times: Any) -> torch.Tensor | None:
    """The moment of each seed; that of its node where none is given."""
    if not rule.is_temporal:
        if times is not None:
            raise SamplingError(
                "the seeds have times, but neither nodes nor edges do: give the sampler node_times or "
                "edge_times."
            )
        return None
    if times is None:
        if rule.node_times is None:
            raise SamplingError(
                "the edges have times and the seeds have none: pass `times`, one for each seed."
            )
        return numbers_at(rule.node_times, seeds).long().contiguous()
    read = read_numbers(times, "times").long().contiguous()
    if read.numel() != seeds.numel():
        raise SamplingError(f"there are {seeds.numel():,} seeds, but {read.numel():,} times.")
    return read


def read_column(
    graph: RelationalGraph, given: Any, name: str, counted: str, *, is_whole: bool = True
) -> torch.Tensor | None:
    """What a user calls by its name in the graph's data, or passes as a tensor."""
    if given is None:
        return None
    known = graph.node_data if counted == "nodes" else graph.edge_data
    count = graph.num_nodes if counted == "nodes" else graph.num_edges
    if isinstance(given, str):
        if given not in known:
            told = ", ".join(f"`{each}`" for each in known) or "none"
            raise SamplingError(
                f"{name} is {given!r}, but the graph's {counted} have no such data (there is {told}).\n"
                f"  `graph.with_data({counted}={{{given!r}: tensor}})` adds it."
            )
        given = known[given]
    if isinstance(given, Mapping):  # of some relations: others have no time, or the weight 1
        given = join_relations(graph, given, NO_TIME if is_whole else 1)
    column: torch.Tensor
    if isinstance(given, UnifiedTensor):
        column = given
    else:
        column = read_numbers(given, name) if is_whole else torch.as_tensor(given, device="cpu")
    is_fitting = not column.is_complex() and column.dtype is not torch.bool
    if not is_fitting or (is_whole and column.is_floating_point()):
        kind = "whole" if is_whole else "real"
        raise SamplingError(f"{name} must hold {kind} numbers, got {column.dtype}.")
    if column.dim() != 1 or column.shape[0] != count:
        raise SamplingError(
            f"{name} must have one number for each of {count:,} {counted}, got shape "
            f"{tuple(column.shape)}."
        )
    return share_column(column)
