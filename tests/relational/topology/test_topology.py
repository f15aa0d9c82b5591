"""Ways and members agree with each other and with the edges."""

import pytest
import torch
from hypothesis import given, settings

from shorthaul.graphs import RelationalGraph
from shorthaul.relational.ir.spaces import WAYS, Space
from shorthaul.relational.topology.topology import Topology
from tests.graphs.drawn_graphs import edge_lists
from tests.relational.programs import sample_graph


@settings(max_examples=40, deadline=None)
@given(edge_lists())
def test_members_are_ways_walked_backwards(edges):
    topology = Topology.of(edges.graph())
    for (fine, way), coarse in WAYS.items():
        leads_to = topology.way(fine, way)
        pointers, rows = topology.members(fine, way)
        assert len(pointers) == topology.rows(coarse) + 1
        assert len(leads_to) == topology.rows(fine) == int(pointers[-1])
        rows = torch.arange(topology.rows(fine)) if rows is None else rows.long()
        owner = torch.repeat_interleave(torch.arange(topology.rows(coarse)), pointers.diff().long())
        assert torch.equal(leads_to[rows].long(), owner)


@settings(max_examples=40, deadline=None)
@given(edge_lists())
def test_a_way_in_the_order_of_another_way(edges):
    topology = Topology.of(edges.graph())
    for by in ("source", "relation", "source_pair"):
        rows = topology.members(Space.EDGE, by).rows
        found = topology.way(Space.EDGE, "target", by=by)
        assert torch.equal(found, topology.way(Space.EDGE, "target")[rows.long()])
    # Edges lie in the order of their targets, which takes no second list.
    assert topology.members(Space.EDGE, "target").rows is None
    sources = topology.way(Space.EDGE, "source")
    assert topology.way(Space.EDGE, "source", by="target") is sources


@settings(max_examples=40, deadline=None)
@given(edge_lists())
def test_chunks_and_tiles_cover_every_row_once(edges):
    topology = Topology.of(edges.graph())
    chunks = topology.chunks(Space.TARGET, Space.EDGE, "target").tolist()
    assert chunks[0] == 0
    assert chunks[-1] == topology.num_targets
    assert chunks == sorted(set(chunks))
    tiles = topology.tiles(Space.EDGE, "relation", 3)
    sizes = tiles.limits.diff()
    assert int(sizes.sum()) == topology.rows(Space.EDGE)
    assert bool((sizes <= 3).all())
    assert tiles.first.tolist()[-1] == tiles.owners.numel()
    counted = topology.count(Space.EDGE, "relation", torch.float32)
    for relation, count in enumerate(counted.tolist()):
        assert int(sizes[tiles.owners == relation].sum()) == count


def test_types_at_the_ends_of_a_relation():
    graph = sample_graph(relations=2)  # a-a, a-b, b-a and b-b twice
    topology = Topology.of(graph)
    assert topology.rows(Space.RELATION_TYPE) == 16
    assert topology.tensor_shape(Space.RELATION_TYPE) == (8, 2)
    assert topology.way(Space.RELATION, "source_type").tolist() == [0, 0, 1, 1] * 2
    assert topology.way(Space.RELATION, "target_type").tolist() == [0, 1] * 4
    assert topology.way(Space.RELATION, "and_source_type").tolist() == [0, 2, 5, 7, 8, 10, 13, 15]
    assert topology.way(Space.RELATION, "and_target_type").tolist() == [0, 3, 4, 7, 8, 11, 12, 15]


def test_edges_are_sorted_by_target_and_know_who_they_were():
    graph = sample_graph()
    topology = Topology.of(graph)
    assert torch.equal(topology.graph.source, graph.source[topology.edge_ids.long()])
    assert bool((topology.graph.target.diff() >= 0).all())
    assert Topology.of(graph) is topology


def test_the_first_nodes_can_be_the_only_targets():
    graph = sample_graph()
    keep = graph.target < 5
    from shorthaul.graphs import RelationalGraph

    smaller = RelationalGraph.from_edges(
        graph.source[keep], graph.target[keep], graph.relation[keep], num_nodes=9, num_relations=16
    )
    topology = Topology.of(smaller, 5)
    assert topology.rows(Space.TARGET) == 5
    assert len(topology.members(Space.EDGE, "target").pointers) == 6


def test_a_graph_that_changed_is_refused():
    from shorthaul.errors import GraphChangedError

    graph = sample_graph()
    Topology.of(graph)
    graph.source.add_(0)
    with pytest.raises(GraphChangedError):
        Topology.of(graph)


def test_rows_are_sorted_into_buckets_by_how_many_finer_rows_they_have():
    graph = RelationalGraph.from_edges([0, 0, 0, 1, 1, 2], [1, 1, 1, 0, 0, 3], num_nodes=5)
    buckets = Topology.of(graph).buckets(Space.EDGE, "target", (0, 2))
    assert [each.tolist() for each in buckets] == [[2, 4], [0, 3], [1]]


def test_places_lead_back_to_the_edges_as_they_were_given():
    topology = Topology.of(sample_graph())
    back = topology.edge_ids[topology.edge_places()]
    assert back.tolist() == list(range(topology.rows(Space.EDGE)))


def test_sorted_edges_know_their_targets_as_if_they_were_sorted_again():
    graph = RelationalGraph.from_edges([0, 2, 1, 0], [1, 0, 1, 1], relation=[1, 0, 0, 0])
    known = Topology.of(graph).graph
    again = RelationalGraph.from_edges(
        known.source, known.target, known.relation, num_nodes=3, num_relations=2
    )
    one, other = known.by_target(), again.by_target()
    for name in ("pointers", "sources", "relations", "edges"):
        assert torch.equal(getattr(one, name), getattr(other, name))
