"""The choice between rows and averages: it covers all edges, with nearly the fewest that can."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from shorthaul.distributed.whole_graph.choice import choose_averages
from tests.distributed.whole_graph.whole_graphs import count_fewest

EDGES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=40)
Edge = tuple[int, int]


def choose(edges: list[Edge]) -> list[bool]:
    sources, heard = torch.tensor(edges).T
    found: list[bool] = choose_averages(sources, heard).tolist()
    return found


def cost(edges: list[Edge], by_average: list[bool]) -> int:
    rows = {edge[0] for edge, is_so in zip(edges, by_average, strict=True) if not is_so}
    sums = {edge[1] for edge, is_so in zip(edges, by_average, strict=True) if is_so}
    return len(rows) + len(sums)


@given(EDGES)
def test_a_choice_is_no_worse_than_rows_or_averages_of_all(edges: list[Edge]) -> None:
    found = cost(edges, choose(edges))
    assert count_fewest(edges) <= found <= count_fewest(edges) + 1
    assert found <= min(len({one for one, _ in edges}), len({other for _, other in edges}))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30))
def test_trees_are_covered_by_the_fewest(parents: list[int]) -> None:
    """Odd nodes are targets, even ones sources: each node joins one of the other kind before it."""
    edges = []
    for node, drawn in enumerate(parents, 1):
        parent = drawn % node
        parent += (parent - node + 1) % 2 * (1 if parent + 1 < node else -1)
        if 0 <= parent < node:
            edges.append((node, parent) if node % 2 == 0 else (parent, node))
    if edges:
        assert cost(edges, choose(edges)) == count_fewest(edges)


def test_targets_of_many_sources_hear_an_average_and_sources_of_many_targets_are_sent() -> None:
    edges = [(source, 0) for source in range(5)] + [(9, target) for target in range(5)]
    assert choose(edges) == [True] * 5 + [False] * 5


def test_edges_that_are_there_twice_do_not_count_twice() -> None:
    assert choose([(0, 0)] * 5 + [(0, 1)]) == [False] * 6


def test_rows_are_sent_where_both_are_the_same() -> None:
    assert choose([(0, 0), (1, 1)]) == [False, False]
    none = torch.empty(0, dtype=torch.int64)
    assert choose_averages(none, none).tolist() == []


def test_a_chain_longer_than_the_search_is_covered() -> None:
    """Each round takes the ends; rows cover what is left, and all of it."""
    edges = [(node // 2, (node + 1) // 2) for node in range(3000)]
    found = cost(edges, choose(edges))
    assert found <= 1500
