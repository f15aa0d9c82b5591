"""The choice between rows and averages: never more than either alone, and averages only where they are fewer."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from shorthaul.distributed.whole_graph.choice import choose_averaged

EDGES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=60
)
Edge = tuple[int, int, int]


def cost(edges: list[Edge], averaged: set[int]) -> int:
    rows = {source for source, relation, _ in edges if relation not in averaged}
    sums = {(relation, target) for _, relation, target in edges if relation in averaged}
    return len(rows) + len(sums)


def choose(edges: list[Edge]) -> set[int]:
    sources, relations, targets = torch.tensor(edges).T
    return set(choose_averaged(sources, relations, targets).tolist())


@given(EDGES)
def test_a_choice_is_no_worse_than_rows_or_averages_of_all(edges: list[Edge]) -> None:
    found = cost(edges, choose(edges))
    assert found <= min(cost(edges, set()), cost(edges, {0, 1, 2, 3}))


@given(EDGES)
def test_one_relation_alone_cannot_be_moved_to_save_anything(edges: list[Edge]) -> None:
    chosen = choose(edges)
    for relation in range(4):
        assert cost(edges, chosen ^ {relation}) >= cost(edges, chosen)


def test_relations_that_read_the_same_rows_are_averaged_together() -> None:
    edges = [(source, relation, 0) for source in range(5) for relation in range(3)]
    assert choose(edges) == {0, 1, 2}
    assert choose(edges[:3]) == set()  # one row for three relations


def test_rows_are_sent_where_both_are_the_same() -> None:
    assert choose([(0, 0, 0), (1, 0, 1)]) == set()
    assert choose_averaged(*(torch.empty(0, dtype=torch.int64),) * 3).tolist() == []
