"""`NegativeSampler`: true edges in, edges that do not exist out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shorthaul.errors import NoNegativeError, SamplingError
from shorthaul.graphs.edge_tensors import as_plain, read_numbers
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.sampling.candidates.excluded import read_edge_ids
from shorthaul.graphs.sampling.candidates.rules import read_column
from shorthaul.graphs.sampling.negatives.kernels import negative_kernels
from shorthaul.graphs.sampling.negatives.plain_negatives import (
    PlainPool,
    PlainRequest,
    draw_plainly,
)
from shorthaul.graphs.sampling.negatives.pools import ENDS, Pool, PoolRule, read_weights
from shorthaul.graphs.sampling.negatives.true_edges import (
    TrueEdges,
    lies_on_disk,
    read_target_rows,
    sort_true_edges,
)
from shorthaul.graphs.sampling.streams import as_signed, choose_key, choose_threads, read_seed
from shorthaul.jit import can_use_kernels
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import alone_after_fork

REPLACED = ("target", "source", "either", "both")
AMONG = ("type", "relation")
# Where a pair is free with a chance of one in ten, fewer than two in a thousand are left after these;
# they are looked for among all pairs.
ATTEMPTS = 64


@dataclass(frozen=True, eq=False, repr=False)
class NegativeEdges:
    """Edges that do not exist: row `p` has those for positive `p`."""

    sources: torch.Tensor  # (positives, count) global ids
    targets: torch.Tensor  # (positives, count)
    relations: torch.Tensor  # (positives,) those of the positives
    number: int  # which sample of its sampler it is

    def __repr__(self) -> str:
        positives, count = self.sources.shape
        return f"NegativeEdges({positives:,} positives, {count:,} for each)"


@dataclass(frozen=True, eq=False)
class _Asked:
    """Positives that were checked, and how many negatives each gets."""

    sources: torch.Tensor
    targets: torch.Tensor
    relations: torch.Tensor
    moments: torch.Tensor | None
    ranges: tuple[tuple[torch.Tensor, torch.Tensor], ...]  # of sources, of targets
    count: int
    key: int
    threads: int


class NegativeSampler:
    """Draws pairs of nodes that no edge joins, in generated C++ on all cores.

    >>> import torch
    >>> from shorthaul.graphs import NegativeSampler, RelationalGraph
    >>> graph = RelationalGraph.from_edges([0, 0, 1], [2, 3, 3], num_nodes=5)
    >>> negatives = NegativeSampler(graph, seed=1).sample([0, 1], [2, 3], count=2)
    >>> negatives.sources.tolist()  # kept; the targets are none of 0's and 1's neighbors
    [[0, 0], [1, 1]]
    >>> true_edges = {(0, 2), (0, 3), (1, 3)}
    >>> pairs = zip(negatives.sources.flatten().tolist(), negatives.targets.flatten().tolist())
    >>> true_edges.isdisjoint(pairs)
    True

    An end that is replaced is a node of the type that the relation has there. The same `seed` and the
    same number of a sample give the same pairs, on any number of threads, from memory and from disk.
    Threads may share a sampler.

    Args:
        graph: The graph.
        replaces: Which end of a true edge is new: `"target"` (default) or `"source"` keep the other
            one, `"either"` decides for each negative by chance, and `"both"` draws two nodes.
        exponent: Nodes are drawn in proportion to their degree at that end of the relation to this
            power (default 0, which makes all equally likely; 0.75 is usual).
        among: `"type"` (default) draws from all nodes of the right type, `"relation"` from those that
            some edge of the relation has at that end.
        weights: How likely nodes are, instead of by degree: one number for each node, or the name of
            node data; None (default) for none.
        groups: Whole numbers, one for each node, or the name of node data: a new node is of the same
            group as the true one, which makes negatives hard; None (default) for none.
        node_times: Whole numbers, one for each node, or the name of node data: a new node is not
            later than the edge's moment; None (default) for none.
        includes_equal: Whether a node that has the very moment of the edge may be drawn (default
            True).
        avoids: True (default) never gives an edge of the graph, nor the positive itself; a graph with
            the same nodes and relations avoids its edges instead, such as those of all splits; False
            takes what comes.
        allows_loops: Whether a node may be joined with itself (default True).
        seed: Of every random choice (default 0).
    """

    @outside_graphs
    @alone_after_fork
    def __init__(
        self,
        graph: RelationalGraph,
        *,
        replaces: str = "target",
        exponent: float = 0.0,
        among: str = "type",
        weights: Any = None,
        groups: Any = None,
        node_times: Any = None,
        includes_equal: bool = True,
        avoids: bool | RelationalGraph = True,
        allows_loops: bool = True,
        seed: int = 0,
    ) -> None:
        self.graph, self.seed = graph, read_seed(seed)
        self.replaces = _read_choice("replaces", replaces, REPLACED)
        self.includes_equal, self.allows_loops = bool(includes_equal), bool(allows_loops)
        self._known = _read_known(graph, avoids)
        heavy = read_column(graph, weights, "weights", "nodes", is_whole=False)
        self.rule = PoolRule(
            _read_choice("among", among, AMONG) == "relation",
            _read_exponent(exponent),
            None if heavy is None else read_weights(heavy),
            read_column(graph, groups, "groups", "nodes"),
            read_column(graph, node_times, "node_times", "nodes"),
        )
        if self.rule.weights is not None and self.rule.exponent:
            raise SamplingError("nodes are weighed by `weights` or by `exponent`, not by both.")
        self._numbers = itertools.count()

    @outside_graphs
    @alone_after_fork
    def sample(
        self,
        sources: Any,
        targets: Any,
        relations: Any = None,
        *,
        count: int = 1,
        times: Any = None,
        number: int | None = None,
        threads: int | None = None,
    ) -> NegativeEdges:
        """Negatives for some true edges.

        Args:
            sources: Global ids of the nodes where they begin.
            targets: Global ids of the nodes where they end.
            relations: Their relations: a number for each, or one name for all; None (default) where
                the graph has one relation.
            count: How many for each (default 1).
            times: The moments of the edges, with `node_times`; None (default) without.
            number: Which sample of this sampler it is, and so which random numbers it gets; None
                (default) counts from 0.
            threads: Threads that draw; None (default) takes PyTorch's number.
        """
        number = next(self._numbers) if number is None else number
        asked = self._read(sources, targets, relations, count, times, number, threads)
        wanted = asked.sources.shape[0] * count
        numbers = torch.arange(wanted, dtype=torch.int64, device="cpu")
        if not can_use_kernels("negative edges"):
            pairs = self._draw_plainly(asked)
        elif self._known is not None and lies_on_disk(self._known):
            pairs = self._draw_from_disk(asked, numbers)
        else:
            pairs = self._draw(asked, numbers, 0)
        one, other = (each.view(-1, count) for each in pairs)
        return NegativeEdges(one, other, asked.relations, number)

    @outside_graphs
    @alone_after_fork
    def sample_edges(self, edges: Any, **options: Any) -> NegativeEdges:
        """Negatives for edges of the graph.

        Args:
            edges: Their ids.
            options: Further arguments of `sample`.
        """
        ids = read_edge_ids(self.graph, edges, "edges")
        graph = self.graph
        ends = (as_plain(each[ids]) for each in (graph.source, graph.target, graph.relation))
        return self.sample(*ends, **options)

    def sample_plainly(
        self,
        sources: Any,
        targets: Any,
        relations: Any = None,
        *,
        count: int = 1,
        times: Any = None,
        number: int = 0,
    ) -> NegativeEdges:
        """The same in plain Python: where there is no compiler, and to compare with.

        Args:
            sources: As for `sample`.
            targets: As for `sample`.
            relations: As for `sample`.
            count: How many for each (default 1).
            times: The moments of the edges; None (default) without.
            number: Which sample of this sampler it is (default 0).
        """
        asked = self._read(sources, targets, relations, count, times, number, 1)
        one, other = (each.view(-1, count) for each in self._draw_plainly(asked))
        return NegativeEdges(one, other, asked.relations, number)

    @functools.cached_property
    def _pools(self) -> tuple[Pool, ...]:
        return tuple(Pool(self.graph, end, self.rule) for end in ENDS)

    @functools.cached_property
    def _true_edges(self) -> TrueEdges:
        return TrueEdges() if self._known is None else sort_true_edges(self._known)

    def _read(
        self,
        sources: Any,
        targets: Any,
        relations: Any,
        count: int,
        times: Any,
        number: int,
        threads: int | None,
    ) -> _Asked:
        graph, dtype = self.graph, self.graph.index_dtype
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise SamplingError(f"count must be a whole number from 1 on, got {count!r}.")
        ends = [read_numbers(sources, "sources"), read_numbers(targets, "targets")]
        kinds = read_relations(graph, relations, ends[0].shape[0])
        for name, values in (("targets", ends[1]), ("relations", kinds)):
            if values.shape[0] != ends[0].shape[0]:
                raise SamplingError(
                    f"there are {ends[0].shape[0]:,} sources, but {values.shape[0]:,} {name}."
                )
        for end, nodes in zip(ENDS, ends, strict=True):
            require_end(graph, end, nodes, kinds)
        ranges = tuple(
            pool.find_ranges(kinds, nodes) for pool, nodes in zip(self._pools, ends, strict=True)
        )
        key, moments = choose_key(self.seed, number), self._read_moments(times, ends[0].shape[0])
        one, other, kinds = (each.to(dtype).contiguous() for each in (*ends, kinds))
        return _Asked(one, other, kinds, moments, ranges, count, key, choose_threads(threads))

    def _read_moments(self, times: Any, count: int) -> torch.Tensor | None:
        if times is None and self.rule.times is None:
            return None
        if times is None or self.rule.times is None:
            given, missing = (
                ("`times`", "`node_times`")
                if times is not None
                else (
                    "`node_times`",
                    "`times`",
                )
            )
            raise SamplingError(
                f"{given} without {missing}: nodes and edges have times, or neither."
            )
        moments = read_numbers(times, "times").long().contiguous()
        if moments.shape[0] != count:
            raise SamplingError(f"there are {count:,} sources, but {moments.shape[0]:,} times.")
        return moments

    def _arguments(self, asked: _Asked) -> tuple[Any, ...]:
        pools = [
            each
            for pool, ranges in zip(self._pools, asked.ranges, strict=True)
            for each in (*pool.entries, *ranges)
        ]
        return (
            asked.sources,
            asked.targets,
            asked.relations,
            asked.moments,
            *pools,
            REPLACED.index(self.replaces),
            self.allows_loops,
            self.includes_equal,
            self._known is not None,
            asked.count,
            as_signed(asked.key),
        )

    def _draw(
        self, asked: _Asked, numbers: torch.Tensor, first_attempt: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """With the true edges in memory, those before `first_attempt` having failed."""
        kernel = negative_kernels(self.graph.index_dtype)
        pairs = asked.sources.new_empty(len(numbers)), asked.sources.new_empty(len(numbers))
        failed = kernel.draw(
            *self._arguments(asked),
            *self._true_edges,
            numbers,
            *pairs,
            first_attempt,
            ATTEMPTS,
            asked.threads,
        )
        if failed >= 0:
            raise self._no_negative(asked, failed)
        return pairs

    def _draw_from_disk(
        self, asked: _Asked, numbers: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attempt by attempt: draw, read the edges of the targets, keep what is free."""
        assert self._known is not None
        kernel, given = negative_kernels(self.graph.index_dtype), self._arguments(asked)
        found = [asked.sources.new_empty(len(numbers)) for _ in ENDS]
        left = numbers
        for attempt in range(ATTEMPTS):
            if not len(left):
                break
            pairs = asked.sources.new_empty(len(left)), asked.sources.new_empty(len(left))
            kernel.propose(*given, left, *pairs, attempt, asked.threads)
            is_free = torch.empty(len(left), dtype=torch.uint8, device="cpu")
            rows = read_target_rows(self._known, pairs[1])
            kernel.check(*given, left, *pairs, *rows, is_free, asked.threads)
            kept = is_free.bool()
            for column, values in zip(found, pairs, strict=True):
                column[left[kept]] = values[kept]
            left = left[~kept]
        if len(left):  # nearly every pair is an edge: the edges are few enough for memory
            for column, values in zip(found, self._draw(asked, left, ATTEMPTS), strict=True):
                column[left] = values
        return found[0], found[1]

    def _draw_plainly(self, asked: _Asked) -> tuple[torch.Tensor, torch.Tensor]:
        true_edges = None
        if self._known is not None:
            known = (self._known.source, self._known.target, self._known.relation)
            true_edges = frozenset(zip(*(as_plain(each).tolist() for each in known), strict=True))
        positives = (each.tolist() for each in (asked.sources, asked.targets, asked.relations))
        source_pool, target_pool = (
            _list_pool(pool, ranges) for pool, ranges in zip(self._pools, asked.ranges, strict=True)
        )
        request = PlainRequest(
            list(zip(*positives, strict=True)),
            None if asked.moments is None else asked.moments.tolist(),
            (source_pool, target_pool),
            true_edges,
            REPLACED.index(self.replaces),
            self.allows_loops,
            self.includes_equal,
            asked.count,
            asked.key,
        )
        pairs: list[tuple[int, int]] = []
        for n, pair in enumerate(draw_plainly(request, ATTEMPTS)):
            if pair is None:
                raise self._no_negative(asked, n)
            pairs.append(pair)
        made = torch.tensor(pairs, dtype=self.graph.index_dtype, device="cpu").view(-1, 2)
        return made[:, 0].contiguous(), made[:, 1].contiguous()

    def _no_negative(self, asked: _Asked, n: int) -> NoNegativeError:
        at = n // asked.count
        relation = self.graph.relations[int(asked.relations[at])]
        return NoNegativeError(
            at, int(asked.sources[at]), int(asked.targets[at]), str(relation), self.replaces
        )

    def __getstate__(self) -> dict[str, Any]:
        made = ("_numbers", "_pools", "_true_edges")
        return {name: each for name, each in vars(self).items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._numbers = itertools.count()

    def __repr__(self) -> str:
        return f"NegativeSampler({self.graph!r}, replaces={self.replaces!r}, seed={self.seed})"


def read_relations(graph: RelationalGraph, relations: Any, count: int) -> torch.Tensor:
    """The number of each edge's relation."""
    if relations is None and graph.num_relations != 1:
        raise SamplingError(
            f"the graph has {graph.num_relations:,} relations: pass `relations`, a number for each edge "
            "or one name for all."
        )
    if relations is None or isinstance(relations, str | tuple):
        number = 0 if relations is None else graph.relation_number(relations)
        return torch.full((count,), number, dtype=torch.int64, device="cpu")
    numbers = read_numbers(relations, "relations")
    wrong = torch.nonzero((numbers < 0) | (numbers >= graph.num_relations))
    if wrong.numel():
        at = int(wrong[0])
        raise SamplingError(
            f"relation {int(numbers[at]):,} at position {at:,} is none of the graph's "
            f"{graph.num_relations:,}, numbered from 0."
        )
    return numbers


def require_end(
    graph: RelationalGraph, end: str, nodes: torch.Tensor, relations: torch.Tensor
) -> None:
    """Raise unless every node is of the type that its edge's relation has at that end."""
    kinds = [graph.nodes_of(getattr(each, f"{end}_type")) for each in graph.relations]
    firsts, stops = (
        torch.tensor([getattr(each, name) for each in kinds], dtype=torch.int64, device="cpu")
        for name in ("start", "stop")
    )
    numbers = relations.long()
    wrong = torch.nonzero((nodes < firsts[numbers]) | (nodes >= stops[numbers]))
    if wrong.numel():
        at = int(wrong[0])
        relation = graph.relations[int(relations[at])]
        own = kinds[int(relations[at])]
        raise SamplingError(
            f"{end}s[{at:,}] is node {int(nodes[at]):,}, but a {end} of `{relation}` is of type "
            f"`{getattr(relation, f'{end}_type')}`, nodes {own.start:,} to {own.stop - 1:,}."
        )


def _list_pool(pool: Pool, ranges: tuple[torch.Tensor, torch.Tensor]) -> PlainPool:
    nodes: Sequence[int] = range(pool.graph.num_nodes)
    listed = [None if each is None else each.tolist() for each in pool.entries]
    both = list(zip(*(each.tolist() for each in ranges), strict=True))
    return PlainPool(listed[0] or nodes, listed[1], listed[2], listed[3], both)


def _read_choice(name: str, given: Any, known: Sequence[str]) -> str:
    if given not in known:
        raise SamplingError(f"{name} must be one of {', '.join(known)}, got {given!r}.")
    return str(given)


def _read_exponent(exponent: Any) -> float:
    is_number = isinstance(exponent, int | float) and not isinstance(exponent, bool)
    if not is_number or not 0 <= exponent < float("inf"):
        raise SamplingError(f"exponent must be a number from 0 on, got {exponent!r}.")
    return float(exponent)


def _read_known(graph: RelationalGraph, avoids: Any) -> RelationalGraph | None:
    """The graph whose edges are true; None where negatives may be anything."""
    if isinstance(avoids, bool):
        return graph if avoids else None
    if not isinstance(avoids, RelationalGraph):
        raise SamplingError(f"avoids must be True, False or a graph, got {type(avoids).__name__}.")
    same = ("node_types", "nodes_per_type", "relations", "index_dtype")
    for name in same:
        if getattr(avoids, name) != getattr(graph, name):
            raise SamplingError(
                f"avoids must be a graph with the same nodes and relations, but its {name} are "
                f"{getattr(avoids, name)}, not {getattr(graph, name)}."
            )
    return avoids
