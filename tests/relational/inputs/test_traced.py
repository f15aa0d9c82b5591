"""Each form of edges becomes the graph that it is without tracing, and is kept for the same tensors."""

import torch

from shorthaul.graphs import NeighborSampler, RelationalGraph
from shorthaul.relational.runtime.traced_graph import BUILDERS, EdgeSizes, trace_block, trace_graph
from shorthaul.relational.topology.block_graph import graph_of_block

EDGES, KINDS = torch.tensor([[0, 0, 1, 3], [1, 2, 2, 0]]), torch.tensor([0, 1, 0, 1])
SIZES = EdgeSizes((4,), 4, 2, ())


def _columns(graph):
    return [each.tolist() for each in (graph.source, graph.target, graph.relation)]


def test_edges_with_and_without_relations():
    made = BUILDERS["edges"]([EDGES, KINDS], SIZES)
    assert _columns(made) == [*EDGES.tolist(), KINDS.tolist()]
    assert BUILDERS["edges"]([EDGES, KINDS], SIZES) is made
    assert BUILDERS["edges"]([EDGES], EdgeSizes((4,), 4, 1, ())).num_relations == 1


def test_columns_are_their_own_graph_or_one_with_the_same_edges():
    graph = RelationalGraph.from_edge_index(EDGES, KINDS, num_nodes=4, num_relations=2)
    tensors = trace_graph(graph, None, 2).tensors
    assert BUILDERS["columns"](tensors, SIZES) is graph
    copied = [each.clone() for each in tensors]
    other = BUILDERS["columns"](copied, SIZES)
    assert other is not graph
    assert _columns(other) == _columns(graph)
    assert BUILDERS["columns"](copied, SIZES) is other


def test_typed_edges_keep_the_types_of_their_ends():
    one, other = torch.tensor([[0, 1], [2, 2]]), torch.tensor([[0], [1]])
    sizes = EdgeSizes((2, 3), 5, 2, (0, 1, 1, 1))
    made = BUILDERS["typed"]([one, other], sizes)
    assert _columns(made) == [[0, 1, 2], [4, 4, 3], [0, 0, 1]]
    assert made.nodes_per_type == (2, 3)


def test_sources_and_targets_that_are_numbered_apart():
    made = BUILDERS["bipartite"]([EDGES, KINDS], EdgeSizes((4,), 3, 2, ()))
    assert _columns(made) == [*EDGES.tolist(), KINDS.tolist()]


def test_blocks_look_up_their_relations():
    graph = RelationalGraph.from_edge_index(EDGES, KINDS, num_nodes=4, num_relations=2)
    (block,) = NeighborSampler(graph, [-1]).sample(torch.tensor([0, 2])).blocks
    sizes = EdgeSizes((block.num_sources,), block.num_targets, 2, ())
    made = BUILDERS["block"](trace_block(block, 2).tensors, sizes)
    assert _columns(made) == _columns(graph_of_block(block, 2))
