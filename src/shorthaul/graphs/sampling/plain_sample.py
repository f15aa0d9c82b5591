"""Neighbor sampling in plain Python, number for number what the generated kernel samples.

It is the kernel's oracle in tests, and takes over, with equal results, where there is no compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.sampling.candidates.rules import Rule
from shorthaul.graphs.sampling.plain import GOLDEN, RandomStream, mix
from shorthaul.graphs.sampling.plain_candidates import Candidate, Choice, take

_MASK = 2**64 - 1


@dataclass(frozen=True)
class Request:
    """What one sample is asked for, beside the seeds."""

    fan_outs: Sequence[Sequence[int]]
    rule: Rule
    key: int
    resample: bool
    seed_times: Sequence[int] | None = None
    excluded: frozenset[int] = frozenset()


@dataclass
class DrawnHop:
    """The edges of one hop, for targets in the order of the sample's list of nodes."""

    first_target: int
    num_targets: int
    num_nodes: int = 0  # after the hop
    pointers: list[int] = field(default_factory=lambda: [0])
    sources: list[int] = field(default_factory=list)  # positions in the list of nodes
    positions: list[int] = field(default_factory=list)  # positions in the graph's index


def sample_plainly(
    graph: RelationalGraph, seeds: Sequence[int], request: Request
) -> tuple[list[tuple[int, int]], list[DrawnHop]]:
    """The sample's (tree, node) pairs, seeds first, and its hops; all in tree 0 unless disjoint.

    `OverflowError` where a hop has more edges than the index's dtype can count.
    """
    rule, most = request.rule, torch.iinfo(graph.index_dtype).max
    trees = range(len(seeds)) if rule.disjoint else [0] * len(seeds)
    rows: dict[tuple[int, int], int] = {}
    for pair in zip(trees, seeds, strict=True):
        rows.setdefault(pair, len(rows))
    hops: list[DrawnHop] = []
    begin = 0
    for number, fan in enumerate(request.fan_outs):
        met = list(rows)
        first = 0 if request.resample else begin
        begin = len(met)
        targets = met[first:]
        hop = DrawnHop(first, len(targets))
        _draw_hop(graph, request, targets, fan, number, hop)
        if len(hop.positions) > most:
            raise OverflowError(len(hop.positions))
        sources = graph.by_target().sources[_as_ids(graph, hop.positions)].tolist()
        for target, (tree, _) in enumerate(targets):
            for at in range(hop.pointers[target], hop.pointers[target + 1]):
                hop.sources.append(rows.setdefault((tree, sources[at]), len(rows)))
        hop.num_nodes = len(rows)
        hops.append(hop)
    return list(rows), hops


def _draw_hop(
    graph: RelationalGraph,
    request: Request,
    targets: Sequence[tuple[int, int]],
    fan: Sequence[int],
    number: int,
    hop: DrawnHop,
) -> None:
    rule = request.rule
    key = mix((request.key + GOLDEN * (number + 1)) & _MASK)
    choice = Choice(
        rule.strategy,
        rule.replace,
        rule.includes_equal,
        rule.is_temporal,
        request.excluded,
        lambda source: RandomStream(key, source).next(),
    )
    rows = list(_read_candidates(graph, rule, [node for _, node in targets]))
    if rule.replace:
        _require_countable(graph, rows, fan)
    for (tree, node), row in zip(targets, rows, strict=True):
        own = mix((key + GOLDEN * (tree + 1)) & _MASK) if rule.disjoint else key
        moment = None if request.seed_times is None else request.seed_times[tree]
        hop.positions += take(choice, row, fan, moment, RandomStream(own, node))
        hop.pointers.append(len(hop.positions))


def _require_countable(
    graph: RelationalGraph, rows: Sequence[Sequence[Candidate]], fan: Sequence[int]
) -> None:
    """Raise before drawing with replacement what would never end."""
    wanted = 0
    for row in rows:
        runs = {each.relation if len(fan) > 1 else 0 for each in row}
        wanted += sum(max(0, fan[each]) for each in runs)
    if wanted > torch.iinfo(graph.index_dtype).max:
        raise OverflowError(wanted)


def _read_candidates(
    graph: RelationalGraph, rule: Rule, nodes: Sequence[int]
) -> Iterator[list[Candidate]]:
    """The rows of `nodes`; what is read is read once for all of them: it may lie on disk."""
    index = graph.by_target()
    ids = _as_ids(graph, nodes)
    both = index.pointers[torch.stack([ids, ids + 1], dim=1).flatten()]
    ends = both.view(-1, 2).tolist()
    positions = [at for begin, end in ends for at in range(begin, end)]
    places = _as_ids(graph, positions)
    edges, sources = index.edges[places], index.sources[places]
    times = rule.find_times(edges, sources).tolist() if rule.is_temporal else [0] * len(positions)
    weighed = rule.weights is not None
    weights = rule.find_weights(edges).tolist() if weighed else [0.0] * len(positions)
    columns = zip(
        positions, index.relations[places].tolist(), sources.tolist(), times, weights, strict=True
    )
    for begin, end in ends:
        yield [Candidate(*next(columns)) for _ in range(begin, end)]


def _as_ids(graph: RelationalGraph, numbers: Sequence[int]) -> torch.Tensor:
    return torch.tensor(list(numbers), dtype=graph.index_dtype, device="cpu")
