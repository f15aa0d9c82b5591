"""What stands for a graph while a model is traced."""

import dataclasses

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import NeighborSampler, RelationalGraph
from shorthaul.relational.runtime.traced_graph import (
    EdgeSizes,
    TracedGraph,
    trace_block,
    trace_graph,
)
from tests.relational.programs import sample_graph


def test_a_graph_is_its_columns_with_the_types_of_its_relations():
    graph = sample_graph()
    traced = trace_graph(graph, None, 0)
    assert (traced.form, traced.num_targets) == ("columns", graph.num_nodes)
    assert traced.source is graph.source
    assert traced.target is graph.target
    assert traced.relation is graph.relation
    assert traced.ends[:8] == (0, 0, 0, 1, 1, 0, 1, 1)
    assert trace_graph(graph, 4, 0).num_targets == 4
    assert trace_graph(traced, None, 0) is traced


def test_edges_are_read_from_what_pyg_calls_them():
    edges, kinds = torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1])
    traced = TracedGraph("edges", [edges, kinds], (3,), (0, 1), 2, 3)
    assert traced.source.tolist() == [0, 1]
    assert traced.target.tolist() == [1, 2]
    assert traced.relation.tolist() == [0, 1]
    assert TracedGraph("edges", [edges], (3,), (0,), 2, 3).relation.tolist() == [0, 0]
    with pytest.raises(LayerArgumentError, match="of the form `typed`"):
        _ = TracedGraph("typed", [edges], (3,), (0,), 2, 3).source


def test_a_block_without_its_graph_is_refused():
    graph = RelationalGraph.from_edges([2, 3, 2], [0, 0, 1], num_nodes=4)
    (block,) = NeighborSampler(graph, [-1]).sample(torch.tensor([0, 1])).blocks
    assert trace_block(block, 1).num_targets == 2
    with pytest.raises(LayerArgumentError, match="without its graph"):
        trace_block(dataclasses.replace(block, index=None), 1)


def test_names_for_relations_that_came_without():
    sizes = EdgeSizes((2, 3), 5, 2, (0, 1, 1, 1))
    assert sizes.relations() == [("0", "0", "1"), ("1", "1", "1")]
    assert sizes.types() == {"0": 2, "1": 3}
    assert EdgeSizes((2,), 2, 1, ()).relations() == [("0", "0", "0")]
