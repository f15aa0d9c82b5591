"""One loop at every node, and its features."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import RelationalGraph
from shorthaul.relational.inputs.self_loops import (
    add_loops,
    edges_of,
    replace_loop_features,
    replace_loops,
    require_fill,
)

EDGES = torch.tensor([[0, 1, 2, 0], [1, 1, 1, 2]])  # the second is a loop
FEATURES = torch.tensor([[1.0, 2.0], [9.0, 9.0], [3.0, -4.0], [5.0, 6.0]])


def test_a_graph_with_loops_is_made_once():
    graph = RelationalGraph.from_edge_index(EDGES, num_nodes=4)
    looped = add_loops(graph, 2, None)
    assert edges_of(looped).tolist() == [[0, 2, 0, 0, 1], [1, 1, 2, 0, 1]]
    assert looped.num_nodes == 4
    assert add_loops(graph, 2, None) is looped
    assert add_loops(graph, 3, None) is not looped


def test_every_node_has_exactly_one():
    assert replace_loops(EDGES, 4).tolist() == [[0, 2, 0, 0, 1, 2, 3], [1, 1, 2, 0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("fill", "loops"),
    [
        ("mean", [[0, 0], [2, -1], [5, 6]]),
        ("add", [[0, 0], [4, -2], [5, 6]]),
        ("max", [[0, 0], [3, 2], [5, 6]]),
        ("min", [[0, 0], [1, -4], [5, 6]]),
        ("mul", [[1, 1], [3, -8], [5, 6]]),
        (7.0, [[7, 7]] * 3),
        (torch.tensor([1.0, 2.0]), [[1, 2]] * 3),
    ],
    ids=str,
)
def test_features_of_loops(fill, loops):
    made = replace_loop_features(EDGES, FEATURES, 3, fill)
    assert made[:3].tolist() == FEATURES[[0, 2, 3]].tolist()
    assert made[3:].tolist() == loops


def test_fewer_loops_than_targets():
    made = replace_loop_features(EDGES, FEATURES, 1, "add")
    assert made[3:].tolist() == [[0, 0]]


def test_bad_fills_are_named():
    require_fill("mean")
    with pytest.raises(LayerArgumentError, match="median"):
        require_fill("median")
    with pytest.raises(LayerArgumentError, match="3 numbers, edges have 2"):
        replace_loop_features(EDGES, FEATURES, 3, torch.ones(3))
