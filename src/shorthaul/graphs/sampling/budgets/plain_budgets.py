"""Sampling by budgets in plain Python, number for number what the generated kernel samples.

It is the kernel's oracle in tests, and takes over, with equal results, where there is no compiler.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from shorthaul.graphs.edge_tensors import numbers_at
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.sampling.plain import RandomStream, draw

Neighbor = tuple[int, int, int]  # position in the index, source, how many are looked at


@dataclass(frozen=True)
class Request:
    """What one sample is asked for, beside the seeds."""

    num_samples: Sequence[Sequence[int]]  # of each type, for each hop
    most_neighbors: int
    keys: Sequence[tuple[int, int]]


@dataclass
class Subgraph:
    """Nodes in the order in which they were taken, and the edges into each."""

    nodes: list[int]
    offsets: list[int] = field(default_factory=lambda: [0])
    sources: list[int] = field(default_factory=list)  # positions in `nodes`
    positions: list[int] = field(default_factory=list)  # positions in the graph's index


def sample_plainly(graph: RelationalGraph, seeds: Sequence[int], request: Request) -> Subgraph:
    """The nodes that are taken around distinct seeds, and the edges among them."""
    stops = [graph.nodes_of(kind).stop for kind in graph.node_types]
    rows = {node: row for row, node in enumerate(seeds)}
    budgets: dict[int, float] = {}
    last = list(seeds)
    for wanted, (given_key, drawn_key) in zip(request.num_samples, request.keys, strict=False):
        for node in last:
            for _, source, count in _look_at(graph, node, request.most_neighbors, given_key):
                if source not in rows:
                    budgets[source] = budgets.get(source, 0.0) + 1.0 / count
        arrivals = {node: _arrive(node, each, drawn_key) for node, each in budgets.items()}
        last = []
        for kind, number in enumerate(wanted):
            own = [each for each in budgets if bisect.bisect_right(stops, each) == kind]
            last += sorted(own, key=arrivals.__getitem__)[:number]
        for node in last:
            rows[node] = len(rows)
            del budgets[node]
    made = Subgraph(list(rows))
    for node in made.nodes:
        for position, source, _ in _look_at(
            graph, node, request.most_neighbors, request.keys[-1][0]
        ):
            if source in rows:
                made.sources.append(rows[source])
                made.positions.append(position)
        made.offsets.append(len(made.positions))
    return made


def _arrive(node: int, budget: float, key: int) -> float:
    """When a node arrives: the sooner, the larger the square of its budget."""
    number = ((RandomStream(key, node).next() >> 11) + 1) * 2.0**-53
    return -math.log(number) / (budget * budget)


def _look_at(graph: RelationalGraph, node: int, most: int, key: int) -> Iterator[Neighbor]:
    """The neighbors of a node, or as many of each relation as are looked at."""
    index = graph.by_target()
    ends = torch.tensor([node, node + 1], dtype=torch.int64, device="cpu")
    begin, end = numbers_at(index.pointers, ends).tolist()
    places = torch.arange(begin, end, dtype=torch.int64, device="cpu")
    relations, sources = (
        numbers_at(column, places).tolist() for column in (index.relations, index.sources)
    )
    stream = RandomStream(key, node)
    for _, run in itertools.groupby(range(end - begin), key=relations.__getitem__):
        members = list(run)
        chosen = draw(stream, len(members), most, replace=False)
        for each in chosen:
            yield begin + members[each], sources[members[each]], len(chosen)
