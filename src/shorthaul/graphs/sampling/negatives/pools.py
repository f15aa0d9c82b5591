"""Which nodes may stand in for an end of an edge, and how likely each is.

A pool lists nodes range by range: one range for each node type or relation, and within it for each
group. In a range nodes are in the order of their times, so that those there were at a moment are its
beginning, and their weights are added up, so that one is found by a share of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs.edge_tensors import as_plain, numbers_at
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.sampling.candidates.arranging import arrange_rows

ENDS = ("source", "target")


class Entries(NamedTuple):
    """What a pool holds, as the kernels take it."""

    nodes: torch.Tensor | None = None  # None where entry n is node n
    times: torch.Tensor | None = None  # int64, ascending in each range
    weights: torch.Tensor | None = None  # float64
    cumulative: torch.Tensor | None = None  # float64, added up anew in each range, of any scale


@dataclass(frozen=True, eq=False)
class PoolRule:
    """How pools are made, the same for both ends."""

    among_relation: bool = False  # nodes at this end of some edge of the relation, else of the type
    exponent: float = 0.0  # of the degree that weighs a node
    weights: torch.Tensor | None = None  # one for each node
    groups: torch.Tensor | None = None  # a whole number for each node
    times: torch.Tensor | None = None  # one for each node

    @property
    def is_by_relation(self) -> bool:
        """Whether each relation has a pool of its own."""
        return self.among_relation or self.exponent != 0


class Pool:
    """The nodes for one end of edges.

    >>> graph = RelationalGraph.from_edges([0, 1, 1], [2, 2, 3], num_nodes=5)
    >>> pool = Pool(graph, "target", PoolRule(exponent=1.0))
    >>> pool.entries.nodes.tolist(), pool.entries.cumulative.tolist()
    ([2, 3], [2.0, 3.0])
    """

    def __init__(self, graph: RelationalGraph, end: str, rule: PoolRule) -> None:
        self.graph, self.end, self.rule = graph, end, rule
        self._group_of: torch.Tensor | None = None
        self._num_groups = 1
        if rule.groups is not None:
            values, self._group_of = torch.unique(as_plain(rule.groups), return_inverse=True)
            self._num_groups = max(1, values.shape[0])
        kinds = [getattr(each, f"{end}_type") for each in graph.relations]
        self._types = torch.tensor(
            [graph.node_types.index(each) for each in kinds], dtype=torch.int64, device="cpu"
        )
        self._keys: torch.Tensor | None = None
        self.entries = self._make()

    def find_ranges(
        self, relations: torch.Tensor, nodes: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """For edges of `relations` with `nodes` at this end: where their range begins and ends."""
        scopes = relations.long() if self.rule.is_by_relation else self._types[relations.long()]
        if self._keys is None:
            offsets = torch.tensor(self.graph.node_offsets, dtype=torch.int64, device="cpu")
            return offsets[scopes], offsets[scopes + 1]
        keys = scopes * self._num_groups
        if self._group_of is not None:
            keys = keys + self._group_of[nodes.long()]
        begins = torch.searchsorted(self._keys, keys)
        return begins, torch.searchsorted(self._keys, keys, right=True)

    def _make(self) -> Entries:
        rule, graph = self.rule, self.graph
        given = (rule.weights, rule.groups, rule.times)
        if not rule.is_by_relation and all(each is None for each in given):
            return Entries()
        if rule.is_by_relation:
            pairs = graph.pairs("source" if self.end == "source" else "target")
            nodes, degrees = as_plain(pairs.nodes), as_plain(pairs.pair_pointers).diff()
            sizes = as_plain(pairs.pointers).diff().long()
        else:
            nodes = torch.arange(graph.num_nodes, dtype=graph.index_dtype, device="cpu")
            sizes = torch.tensor(graph.nodes_per_type, dtype=torch.int64, device="cpu")
            degrees = nodes
        scopes = torch.repeat_interleave(
            torch.arange(sizes.shape[0], dtype=torch.int64, device="cpu"), sizes
        )
        keys = scopes * self._num_groups
        if self._group_of is not None:
            keys = keys + self._group_of[nodes.long()]
        order = torch.arange(nodes.shape[0], dtype=torch.int64, device="cpu")
        times = None if rule.times is None else numbers_at(rule.times, nodes).long()
        if times is not None:
            order = torch.argsort(times, stable=True)
        order = order[torch.argsort(keys[order], stable=True)]
        self._keys = keys[order]
        weights = self._weigh(nodes, degrees)
        return Entries(
            nodes[order].contiguous(),
            None if times is None else times[order],
            *((None, None) if weights is None else _add_up(self._keys, weights[order])),
        )

    def _weigh(self, nodes: torch.Tensor, degrees: torch.Tensor) -> torch.Tensor | None:
        if self.rule.weights is not None:
            return numbers_at(self.rule.weights, nodes).double()
        if self.rule.exponent == 0:
            return None
        weights = degrees.double() ** self.rule.exponent
        if not bool(torch.isfinite(weights).all()):
            raise SamplingError(
                f"a node of degree {int(degrees.max()):,} weighs more than float64 can count with "
                f"exponent={self.rule.exponent:g}; 0.75 is usual."
            )
        return weights


def read_weights(weights: torch.Tensor) -> torch.Tensor:
    """`weights` of nodes; `SamplingError` names one that is none."""
    values = as_plain(weights).double()
    wrong = torch.nonzero(~((values >= 0) & torch.isfinite(values)))
    if wrong.numel():
        at = int(wrong[0])
        raise SamplingError(
            f"the weight of node {at:,} is {float(values[at])}; weights must be finite and not negative "
            "(0 for a node that is never drawn)."
        )
    return values


def _add_up(keys: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights, and those up to each entry, anew where the key changes."""
    counts = torch.unique_consecutive(keys, return_counts=True)[1]
    starts = torch.zeros(counts.shape[0] + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(counts, 0, out=starts[1:])
    arranged = arrange_rows(starts, torch.int64, weights=weights.contiguous())
    assert arranged.weights is not None
    assert arranged.cumulative is not None
    return arranged.weights, arranged.cumulative
