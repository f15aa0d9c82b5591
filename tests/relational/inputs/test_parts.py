"""Relations that are computed together, as one graph."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.relational.inputs.parts import Loops, Part, find_part_graph

RELATIONS = (("a", "x", "b"), ("b", "y", "b"))
PART = Part(RELATIONS, (3, 2), (2,), ((0, 0), (1, 0)), (None, Loops(1, "replaced")))
EDGES = [torch.tensor([[0, 2], [1, 0]]), torch.tensor([[0, 1], [0, 0]])]


def test_each_relation_has_a_range_of_sources_and_of_targets():
    graph = find_part_graph(PART, EDGES)
    assert graph.num_nodes == 5
    assert graph.num_relations == 2
    # The second relation's loop is taken out, and one put at each of its nodes.
    assert graph.source.tolist() == [0, 2, 4, 3, 4]
    assert graph.target.tolist() == [1, 0, 0, 0, 1]
    assert graph.relation.tolist() == [0, 0, 1, 1, 1]
    assert find_part_graph(PART, EDGES) is graph


def test_targets_can_be_sources_of_their_own():
    part = PART._replace(loops=(Loops(1, "added"), None))
    graph = find_part_graph(part, EDGES)
    # All edges of the first stay; then each target hears from its row among the second set.
    assert graph.source.tolist() == [0, 2, 3, 4, 3, 4]
    assert graph.target.tolist() == [1, 0, 0, 1, 0, 0]
    assert graph.relation.tolist() == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("edges", "said"),
    [
        (torch.tensor([[3], [0]]), "source"),
        (torch.tensor([[0], [2]]), "target"),
        (torch.zeros(2, 1), "whole numbers"),
        (torch.zeros(3, 1, dtype=torch.int64), "whole numbers"),
    ],
)
def test_edges_that_would_reach_into_another_type_are_refused(edges, said):
    with pytest.raises((LayerArgumentError, ValueError), match=said):
        find_part_graph(PART, [edges, EDGES[1]])
