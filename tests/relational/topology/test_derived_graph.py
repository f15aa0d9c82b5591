"""Graphs made of the edges of others: what `from_edges` makes of the same edges, wherever they lie."""

import pytest
import torch

from shorthaul.graphs import RelationalGraph
from shorthaul.relational.topology.derived_graph import derive_graph


@pytest.mark.parametrize("relations", [1, 3])
def test_it_is_the_graph_that_its_edges_make(relations: int) -> None:
    draw = torch.Generator().manual_seed(0)
    source, target = torch.randint(9, (2, 40), generator=draw)
    relation = torch.randint(relations, (40,), generator=draw)
    given = None if relations == 1 else relation
    sizes = {"num_nodes": 9, "num_relations": relations}
    made = derive_graph(source, target, given, **sizes)
    expected = RelationalGraph.from_edges(source, target, given, **sizes)
    assert made.index_dtype is expected.index_dtype
    for name in ("by_target", "by_source", "by_relation"):
        one, other = (vars(getattr(graph, name)()) for graph in (made, expected))
        assert all(torch.equal(one[each], other[each]) for each in other)


def test_edges_stay_on_their_device() -> None:
    edges = torch.empty(2, 5, dtype=torch.int64, device="meta")
    made = derive_graph(*edges, num_nodes=9)
    assert {each.device.type for each in (made.source, made.target, made.relation)} == {"meta"}
