"""Every relation is on the side where it has fewer nodes, with all its edges and pairs."""

import torch
from hypothesis import given, settings

from shorthaul.graphs import RelationalGraph
from shorthaul.relational.ir.spaces import SIDES, Space
from shorthaul.relational.topology.topology import Topology
from tests.graphs.drawn_graphs import edge_lists


def test_a_relation_with_few_targets_and_its_inverse():
    people, genders = torch.arange(6), torch.tensor([6, 7, 6, 7, 6, 7])
    graph = RelationalGraph.from_edges(
        torch.cat([people, genders]),
        torch.cat([genders, people]),
        torch.tensor([0] * 6 + [1] * 6),
    )
    topology = Topology.of(graph)
    assert topology.rows(Space.TARGET_SIDE_PAIR) == 2  # two genders that people have
    assert topology.rows(Space.SOURCE_SIDE_PAIR) == 2  # two genders that have people
    assert topology.way(Space.TARGET_SIDE_PAIR, "node").tolist() == [6, 7]
    assert topology.way(Space.SOURCE_SIDE_PAIR, "node").tolist() == [6, 7]
    assert set(topology.way(Space.TARGET_SIDE_EDGE, "relation").tolist()) == {0}
    assert set(topology.way(Space.SOURCE_SIDE_EDGE, "relation").tolist()) == {1}


@settings(max_examples=40, deadline=None)
@given(edge_lists())
def test_sides_are_disjoint_complete_and_lean(edges):
    topology = Topology.of(edges.graph())
    both = torch.cat([topology.way(each, "edge") for each in SIDES])
    assert sorted(both.tolist()) == list(range(topology.rows(Space.EDGE)))
    fewest = 0
    for relation in range(topology.graph.num_relations):
        of_relation = topology.graph.relation == relation
        ends = (topology.graph.source[of_relation], topology.graph.target[of_relation])
        fewest += min(each.unique().numel() for each in ends)
    assert sum(map(topology.rows, SIDES.values())) == fewest
    for each, pairs in SIDES.items():
        end = "source" if pairs is Space.SOURCE_SIDE_PAIR else "target"
        pair = topology.way(each, "side_pair")
        assert torch.equal(topology.way(pairs, "node")[pair], topology.way(each, end))
        assert torch.equal(topology.way(pairs, "relation")[pair], topology.way(each, "relation"))
