"""The plain indexes are the kernels' oracle, so they are checked against Python's own sort."""

import torch
from hypothesis import given, settings

from shorthaul.graphs.index import plain as plain_indexes
from tests.graphs.drawn_graphs import Edges, edge_lists


@given(edge_lists())
@settings(max_examples=60, deadline=None)
def test_they_are_what_pythons_sort_says(drawn: Edges) -> None:
    source, target, relation = (
        torch.tensor(each, dtype=torch.int64)
        for each in (drawn.source, drawn.target, drawn.relation)
    )
    ids = range(len(drawn.source))
    pointers, by_relation, sources, targets = plain_indexes.sort_relations(
        relation, source, target, drawn.relations
    )
    expected = sorted(ids, key=lambda edge: drawn.relation[edge])
    assert by_relation.tolist() == expected
    assert sources.tolist() == [drawn.source[edge] for edge in expected]
    assert targets.tolist() == [drawn.target[edge] for edge in expected]
    assert pointers.tolist() == [
        sum(each < number for each in drawn.relation) for number in range(drawn.relations + 1)
    ]

    rows = plain_indexes.sort_rows(targets, sources, by_relation, pointers, drawn.nodes)
    expected = sorted(ids, key=lambda edge: (drawn.target[edge], drawn.relation[edge]))
    assert rows.edges.tolist() == expected
    assert rows.ends.tolist() == [drawn.source[edge] for edge in expected]
    assert rows.relations.tolist() == [drawn.relation[edge] for edge in expected]
    assert rows.pointers.tolist() == [
        sum(each < node for each in drawn.target) for node in range(drawn.nodes + 1)
    ]

    found = plain_indexes.find_pairs(rows.pointers, rows.relations, rows.edges, pointers)
    pairs = sorted(set(zip(drawn.relation, drawn.target, strict=True)))
    assert found.nodes.tolist() == [node for _, node in pairs]
    assert found.pointers.tolist() == [
        sum(kind < number for kind, _ in pairs) for number in range(drawn.relations + 1)
    ]
    assert found.edge_to_pair.tolist() == [
        pairs.index((drawn.relation[edge], drawn.target[edge])) for edge in ids
    ]
    for number, pair in enumerate(pairs):
        own = found.pair_edges[
            found.pair_pointers[number] : found.pair_pointers[number + 1]
        ].tolist()
        assert own == [edge for edge in ids if (drawn.relation[edge], drawn.target[edge]) == pair]
