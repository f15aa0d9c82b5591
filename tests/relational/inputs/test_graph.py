"""Every form of a graph is read to the same edges, once for the same objects; bad ones are named."""

import pytest
import torch

from shorthaul import relational
from shorthaul.errors import EdgeRangeError, GraphError, LayerArgumentError
from shorthaul.graphs import NeighborSampler, RelationalGraph
from shorthaul.relational.inputs.graph import (
    find_graph,
    find_typed_graph,
    glorot,
    read_edge_features,
    read_input,
)

EDGES, KINDS = torch.tensor([[0, 1, 1], [1, 2, 0]]), torch.tensor([0, 1, 1])


class PlainGraph:
    """As much of a DGL graph as layers ask for; the real one is asked in `test_accelerate_with_peers.py`."""

    def __init__(self, edges, num_nodes, num_targets=None):
        self.is_block = num_targets is not None
        self.canonical_etypes, self.ntypes = [("_N", "_E", "_N")], ["_N"]
        self._graph, self._counts = object(), (num_nodes, num_targets or num_nodes)
        self._edges = edges

    def edges(self, order):
        assert order == "eid"
        return tuple(each.clone() for each in self._edges)

    def num_src_nodes(self):
        return self._counts[0]

    def num_dst_nodes(self):
        return self._counts[1]

    def change(self, edges):
        self._edges, self._graph = edges, object()


class PlainSparse:
    """As much of `torch_sparse.SparseTensor` as layers ask for."""

    def coo(self):
        return EDGES[1], EDGES[0], KINDS


def _edges_of(graph):
    return sorted(zip(*(getattr(graph, n).tolist() for n in ("source", "relation", "target"))))  # noqa: B905


def test_a_graph_is_built_once():
    edges, kinds = EDGES.clone(), KINDS.clone()
    graph = find_graph(edges, kinds, 3, 2)
    assert find_graph(edges, kinds, 3, 2) is graph
    assert find_graph(edges, kinds, 4, 2) is not graph


@pytest.mark.parametrize("which", ["edges", "kinds"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_graph_changed_after_indexing_is_indexed_anew(which, dtype):
    edges, kinds = EDGES.to(dtype, copy=True), KINDS.to(dtype, copy=True)
    graph = find_graph(edges, kinds, 3, 2)
    graph.by_target()
    if which == "edges":
        edges[0, 0] = 2
    else:
        kinds[0] = 1
    changed = find_graph(edges, kinds, 3, 2)
    assert changed is not graph
    expected = RelationalGraph.from_edge_index(edges, kinds, num_nodes=3)
    assert _edges_of(changed) == _edges_of(expected)


def test_a_graph_is_taken_as_it_is():
    graph = RelationalGraph.from_edges([0], [1])
    assert find_graph(graph, None, 2, 1) is graph


def test_relations_without_edges():
    relations = (("a", "x", "b"), ("b", "y", "a"))
    edges = {relations[1]: torch.tensor([[0], [1]])}
    graph = find_typed_graph(edges, {"a": 2, "b": 3}, relations)
    assert graph.edges_per_relation == (0, 1)
    assert find_typed_graph(edges, {"a": 2, "b": 3}, relations) is graph
    moved = find_typed_graph({relations[0]: edges[relations[1]]}, {"a": 2, "b": 3}, relations)
    assert moved.edges_per_relation == (1, 0)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_adjacencies_that_are_transposed_and_sparse():
    plain = _edges_of(find_graph(EDGES, KINDS, 3, 2))
    assert _edges_of(find_graph(PlainSparse(), None, 3, 2)) == plain
    values = KINDS.clone()
    coo = torch.sparse_coo_tensor(EDGES.flip(0), values, (3, 3))
    for adjacency in (coo, coo.coalesce().to_sparse_csr()):
        assert _edges_of(find_graph(adjacency, None, 3, 2)) == plain
        alone = find_graph(adjacency, None, 3, 1)
        assert alone.num_relations == 1
        assert find_graph(adjacency, None, 3, 1) is alone
    weighted = torch.sparse_coo_tensor(EDGES.flip(0), torch.tensor([1.0, 1.0, 0.5]), (3, 3))
    with pytest.raises(LayerArgumentError, match="weights other than 1"):
        find_graph(weighted, None, 3, 1)


def test_sources_and_targets_apart():
    x = torch.randn(2, 4), torch.randn(5, 3)
    edges = torch.tensor([[0, 1, 1], [1, 4, 0]])
    found = read_input(x, edges, None, 1)
    assert (found.graph.num_nodes, found.num_targets) == (5, 5)
    assert found.targets is x[1]
    assert torch.equal(found.sources, torch.cat([x[0], torch.zeros(3, 4)]))
    turned = read_input(x[::-1], edges.flip(0), None, 1)
    assert (turned.graph.num_nodes, turned.num_targets) == (5, 2)
    assert turned.sources is x[1]
    assert read_input(x, edges, None, 1).graph is found.graph
    assert read_input((x[1], None), edges.flip(0), None, 1, (5, 2)).num_targets == 2


def test_ends_out_of_range_are_named_on_their_side():
    x = torch.randn(2, 4), torch.randn(5, 3)
    with pytest.raises(EdgeRangeError, match="source of edge 1 is 3, but there are 2 source nodes"):
        read_input(x, torch.tensor([[0, 3], [1, 1]]), None, 1)
    with pytest.raises(EdgeRangeError, match="target of edge 0 is 4, but there are 2 target nodes"):
        read_input(x[::-1], torch.tensor([[0], [4]]), None, 1)


def test_a_pair_of_features_needs_ids_of_two_kinds():
    graph = RelationalGraph.from_edges([0], [1])
    with pytest.raises(LayerArgumentError, match="numbers all nodes alike"):
        read_input((torch.randn(2, 4), torch.randn(2, 4)), graph, None, 1)


def test_blocks():
    graph = RelationalGraph.from_edge_index(EDGES, KINDS, num_nodes=3)
    (block,) = NeighborSampler(graph, [-1]).sample(torch.tensor([2, 0])).blocks
    x = torch.randn(block.num_sources, 4)
    found = read_input(x, block, None, 2)
    assert found.num_targets == 2
    assert found.graph.num_nodes == block.num_sources
    assert found.graph.relation.tolist() == block.relations.tolist()
    assert read_input(x, block, None, 2).graph is found.graph
    pair = read_input((x, x[:2]), block, None, 2)
    assert (pair.graph, pair.num_targets) == (found.graph, 2)
    with pytest.raises(LayerArgumentError, match="whole graphs"):
        find_graph(block, None, block.num_sources, 2)


def test_dgl_graphs():
    graph = PlainGraph(EDGES, 3)
    found = find_graph(graph, KINDS, 3, 2)
    assert _edges_of(found) == _edges_of(find_graph(EDGES, KINDS, 3, 2))
    assert find_graph(graph, KINDS, 3, 2) is found
    assert find_graph(graph, KINDS.tolist(), 3, 2) is not found
    graph.change(EDGES.flip(0))
    assert find_graph(graph, KINDS, 3, 2) is not found
    block = PlainGraph(torch.tensor([[0, 2], [1, 0]]), 3, 2)
    assert read_input(torch.randn(3, 4), block, None, 1).num_targets == 2


def test_edges_that_are_no_numbers_of_nodes():
    with pytest.raises(GraphError, match=r"whole numbers .*got torch.float32"):
        find_graph(EDGES.float(), KINDS, 3, 2)
    with pytest.raises(GraphError, match=r"`relation` must hold whole numbers"):
        find_graph(EDGES, KINDS.double(), 3, 2)
    with pytest.raises(EdgeRangeError, match="relation of edge 1 is 1, but there are 1 relations"):
        find_graph(EDGES, KINDS, 3, 1)
    with pytest.raises(EdgeRangeError, match="target of edge 1 is 2, but there are 2 nodes"):
        find_graph(EDGES, KINDS, 2, 2)
    with pytest.raises(GraphError, match="`relation` has 2"):
        find_graph(EDGES, KINDS[:2], 3, 2)
    with pytest.raises(LayerArgumentError, match="2 relations, but edges came without"):
        find_graph(EDGES, None, 3, 2)
    with pytest.raises(LayerArgumentError, match="2 relations, but edges came without"):
        find_graph(PlainGraph(EDGES, 3), None, 3, 2)


def test_glorot_stays_within_its_limits():
    weight = torch.empty(3, 5, 7)
    glorot(weight)
    assert weight.abs().max() <= (6 / 12) ** 0.5
    assert weight.std() > 0.2


def test_edge_features_are_rows_also_of_one_number_and_without_edges():
    for given, shape in (((4,), (4, 1)), ((4, 3), (4, 3)), ((0, 3), (0, 3)), ((0,), (0, 1))):
        assert read_edge_features(torch.ones(given), shape[1]).shape == shape
    assert read_edge_features(None, None) is None
    with pytest.raises(LayerArgumentError, match="edge_dim=2"):
        read_edge_features(torch.ones(0, 2), None)
    with pytest.raises(LayerArgumentError, match="Pass edge_attr"):
        read_edge_features(None, 2)


def test_sizes_that_are_not_those_of_the_features_are_named():
    x = torch.ones(3, 2)
    assert read_input(x, EDGES, KINDS, 2, (3, 3)).num_targets is None
    with pytest.raises(LayerArgumentError, match=r"features of 3 sources and 3 targets.*3 and 2"):
        read_input(x, EDGES, KINDS, 2, (3, 2))
    with pytest.raises(LayerArgumentError, match=r"features of 3 sources and 4 targets.*3 and 5"):
        read_input((x, torch.ones(4, 2)), EDGES, KINDS, 2, (3, 5))
    (block,) = (
        NeighborSampler(RelationalGraph.from_edge_index(EDGES, KINDS), [2]).sample([1]).blocks
    )
    rows = torch.ones(block.num_sources, 2)
    assert read_input((rows, rows[:1]), block, None, 2).num_targets == 1
    with pytest.raises(LayerArgumentError, match=f"and {block.num_sources} targets, .* and 1"):
        read_input((rows, rows), block, None, 2)


@pytest.mark.parametrize(
    ("layer", "arguments"),
    [
        (lambda: relational.SimpleHGN(2, 3, 2), lambda pair: (pair, EDGES, KINDS)),
        (
            lambda: relational.CompGCNConv(2, 3, 1),
            lambda pair: (pair, EDGES, KINDS, torch.ones(2, 2)),
        ),
        (lambda: relational.RelGraphConv(2, 3, 2), lambda pair: (EDGES, pair, KINDS)),
        (
            lambda: relational.DGLHGTConv(2, 3, 1, 1, 2),
            lambda pair: (EDGES, pair, KINDS * 0, KINDS),
        ),
    ],
)
def test_layers_of_one_set_of_nodes_refuse_pairs(layer, arguments):
    module = layer()
    name = type(module).__name__
    with pytest.raises(LayerArgumentError, match=f"pair of features was given to {name}"):
        module(*arguments((torch.ones(3, 2), torch.ones(3, 2))))
