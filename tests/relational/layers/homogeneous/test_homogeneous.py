"""Layers of one relation: what is refused by name, and attention as PyG's users ask for it."""

import copy
import pickle

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import NeighborSampler, RelationalGraph
from shorthaul.relational import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    SAGEConv,
    TransformerConv,
    accelerate,
)

EDGES = torch.tensor([[0, 0, 1, 2], [1, 2, 2, 0]])
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
LAYERS = {
    "gat": lambda: GATConv(4, 2, heads=2),
    "gatv2": lambda: GATv2Conv(4, 2, heads=2),
    "gcn": lambda: GCNConv(4, 2),
    "gin": lambda: GINConv(torch.nn.Linear(4, 2)),
    "graph_conv": lambda: GraphConv(4, 2),
    "sage": lambda: SAGEConv(4, 2),
    "transformer": lambda: TransformerConv(4, 2, heads=2),
}


@pytest.mark.parametrize("name", LAYERS)
def test_copies_and_pickles_compute_the_same(name):
    layer = LAYERS[name]()
    expected = layer(X, EDGES)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(X, EDGES), expected)
    assert "== " in layer.explain()


@pytest.mark.parametrize("name", LAYERS)
def test_inside_torch_compile_without_a_graph_break(name):
    layer = LAYERS[name]().double()
    x = X.double().requires_grad_()
    expected = layer(x, EDGES)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    got = compiled(x, EDGES)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), x)[0], gradient)


@pytest.mark.parametrize("name", ["gat", "gatv2", "transformer"])
def test_attention_is_returned_with_its_edges(name):
    layer = LAYERS[name]()
    out, (edges, alpha) = layer(X, EDGES, return_attention_weights=True)
    assert torch.equal(out, layer(X, EDGES))
    assert alpha.shape == (edges.shape[1], 2)
    shares = torch.zeros(3, 2).index_add(0, edges[1], alpha)
    torch.testing.assert_close(shares, torch.ones(3, 2))
    assert edges.shape[1] == (4 if name == "transformer" else 7)  # attention with loops
    alpha.sum().backward()


def test_a_block_does_not_know_the_degrees_of_its_sources():
    graph = RelationalGraph.from_edge_index(EDGES, num_nodes=3)
    (block,) = NeighborSampler(graph, [-1]).sample([2]).blocks
    with pytest.raises(LayerArgumentError, match="degrees of sources"):
        GCNConv(4, 2)(X[block.source_nodes], block)
    assert GCNConv(4, 2, normalize=False)(X[block.source_nodes], block).shape == (1, 2)


@pytest.mark.parametrize("options", [{}, {"add_self_loops": False, "residual": True}])
@pytest.mark.parametrize("widths", [4, (4, 5)])
def test_attention_without_features_of_targets(options, widths):
    pyg = pytest.importorskip("torch_geometric.nn")
    theirs = pyg.GATConv(widths, 2, heads=2, **options).double()
    ours = copy.deepcopy(theirs)
    assert not accelerate(ours).left
    for size in (None, (3, 3)):
        expected, (_, shares) = theirs((X.double(), None), EDGES, None, size, True)
        found, (_, alpha) = ours((X.double(), None), EDGES, None, size, True)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(alpha, shares)


@pytest.mark.parametrize(
    ("make", "call", "said"),
    [
        (lambda: GCNConv(4, 2, normalize=False, add_self_loops=True), None, "not normalized"),
        (lambda: GraphConv(4, 2, aggr="median"), None, "one of mean, add, sum, max, min"),
        (lambda: GATConv(-1, 2), None, "[Gg]ive the width"),
        (lambda: GATv2Conv(4, 2), lambda m: m((X, None), EDGES), "targets have no features"),
        (lambda: TransformerConv(4, 2), lambda m: m((X, None), EDGES), "targets have no features"),
        (lambda: GATConv(4, 2), lambda m: m(X, EDGES, torch.ones(4, 1)), "edge_dim=1"),
        (lambda: GATConv(4, 2, edge_dim=1), lambda m: m(X, EDGES), "[Pp]ass edge_attr"),
        (lambda: GCNConv(4, 2), lambda m: m((X, X), EDGES), "one set of nodes"),
        (lambda: GCNConv(4, 2), lambda m: m(X, EDGES, torch.ones(3)), "one number per edge"),
        (lambda: TransformerConv((4, 5), 2), lambda m: m(X, EDGES), "[Pp]ass a pair"),
    ],
)
def test_what_does_not_fit_is_named(make, call, said):
    with pytest.raises(LayerArgumentError, match=said):
        call(make())
