"""The edges between given nodes, and the reverse of an edge: what a sample around it may not see.

>>> graph = RelationalGraph.from_edges([0, 1, 0], [1, 0, 1])
>>> find_edges_between(graph, *torch.tensor([[0], [1], [0]]))  # from 0 to 1 by relation 0
(tensor([0, 0]), tensor([0, 2]))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs.edge_tensors import as_plain
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.relation import Relation

PYG_PREFIX = "rev_"  # PyG's ToUndirected calls the reverse of `writes` so


def find_edges_between(
    graph: RelationalGraph, sources: torch.Tensor, targets: torch.Tensor, relations: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of the given triples each edge found belongs to, and its id; by triple, then by id."""
    index = graph.by_target()
    distinct, rows = torch.unique(targets.long(), return_inverse=True)
    ends = as_plain(index.pointers[torch.stack([distinct, distinct + 1], dim=1).flatten()])
    pairs = ends.view(-1, 2).long()
    degrees = pairs[:, 1] - pairs[:, 0]
    shifts = torch.repeat_interleave(pairs[:, 0] - (torch.cumsum(degrees, 0) - degrees), degrees)
    positions = torch.arange(shifts.shape[0], dtype=torch.int64, device="cpu") + shifts
    heads = torch.repeat_interleave(
        torch.arange(len(distinct), device="cpu", dtype=torch.int64), degrees
    )
    known = _number(
        (
            heads,
            as_plain(index.relations[positions]).long(),
            as_plain(index.sources[positions]).long(),
        ),
        (rows, relations.long(), sources.long()),
    )
    of_edges, of_triples = known
    ids = as_plain(index.edges[positions]).long()
    order = torch.argsort(ids, stable=True)
    order = order[torch.argsort(of_edges[order], stable=True)]
    of_edges, ids = of_edges[order], ids[order]
    begins = torch.searchsorted(of_edges, of_triples)
    counts = torch.searchsorted(of_edges, of_triples, right=True) - begins
    which = torch.repeat_interleave(
        torch.arange(len(of_triples), dtype=torch.int64, device="cpu"), counts
    )
    firsts = torch.repeat_interleave(begins - (torch.cumsum(counts, 0) - counts), counts)
    return which, ids[firsts + torch.arange(len(which), dtype=torch.int64, device="cpu")]


def find_reverses(
    graph: RelationalGraph, edges: torch.Tensor, reverse_of: torch.Tensor
) -> torch.Tensor:
    """The ids of the reverses of `edges`: the n-th of several alike is that of the n-th.

    Where there are not as many one way as the other, all of them are.
    """
    source, target, relation = (
        as_plain(each[edges]).long() for each in (graph.source, graph.target, graph.relation)
    )
    alike, own = find_edges_between(graph, source, target, relation)
    other, ids = find_edges_between(graph, target, source, reverse_of[relation])
    counts, others = (torch.bincount(each, minlength=len(edges)) for each in (alike, other))
    ranks, other_ranks = (_count_within(each) for each in (alike, other))
    rank = torch.zeros(len(edges), dtype=torch.int64, device="cpu")
    is_own = own == edges[alike]
    rank[alike[is_own]] = ranks[is_own]
    found: torch.Tensor = ids[(counts != others)[other] | (other_ranks == rank[other])]
    return found


def read_reverses(
    graph: RelationalGraph, given: Mapping[Any, Any] | None, used: torch.Tensor
) -> torch.Tensor:
    """The number of each relation's reverse; that of relations which are not `used` may be anything."""
    numbers = {each: number for number, each in enumerate(graph.relations)}
    found = torch.arange(graph.num_relations, dtype=torch.int64, device="cpu")
    named = {
        graph.relation_number(one): graph.relation_number(other)
        for one, other in (given or {}).items()
    }
    for number in torch.unique(used).tolist():
        relation = graph.relations[number]
        candidates = [
            relation.reversed(),
            *(each for each in graph.relations if each.reversed() == relation),
            Relation(relation.target_type, PYG_PREFIX + relation.name, relation.source_type),
            Relation(
                relation.target_type, relation.name.removeprefix(PYG_PREFIX), relation.source_type
            ),
        ]
        known = [numbers[each] for each in candidates if each in numbers]
        if number in named:
            known = [named[number]]
        if not known:
            raise SamplingError(
                f"the reverse of `{relation}` is not known: no relation is called so.\n"
                f"  Pass reverses={{{tuple(relation)!r}: its reverse}}."
            )
        found[number] = known[0]
    return found


def _count_within(groups: torch.Tensor) -> torch.Tensor:
    """How many equal numbers come before each; equals follow each other."""
    counts = torch.unique_consecutive(groups, return_counts=True)[1]
    starts = torch.repeat_interleave(torch.cumsum(counts, 0) - counts, counts)
    return torch.arange(len(groups), dtype=torch.int64, device="cpu") - starts


def _number(
    one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """A number for each triple of columns, the same for equal ones, also among both."""
    both = [torch.cat(each) for each in zip(one, other, strict=True)]
    numbers = both[0]
    for column in both[1:]:  # after each step below the count of triples: a product never overflows
        width = int(column.max()) + 1 if column.numel() else 1
        numbers = torch.unique(numbers * width + column, return_inverse=True)[1]
    return numbers[: len(one[0])], numbers[len(one[0]) :]
