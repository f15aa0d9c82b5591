"""Sparse adjacencies: their values are weights, against PyG's layers."""

import copy

import pytest
import torch

from shorthaul.relational import GCNConv, GraphConv, accelerate
from shorthaul.relational.inputs import kept_graphs

pyg = pytest.importorskip("torch_geometric.nn")

pytestmark = pytest.mark.filterwarnings("ignore")

# Edges 2 -> 2 and 0 -> 0 are loops.
EDGES = torch.tensor([[0, 0, 1, 2, 2, 0], [1, 2, 2, 0, 2, 0]])
WEIGHTS = torch.tensor([0.5, 2.0, 1.5, 0.25, 3.0, 0.75], dtype=torch.float64)
X = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)).double()
MAKE = {
    "graph": lambda: pyg.GraphConv(4, 2),
    "graph mean": lambda: pyg.GraphConv(4, 2, aggr="mean"),
    "gcn": lambda: pyg.GCNConv(4, 2),
    "gcn improved": lambda: pyg.GCNConv(4, 2, improved=True),
    "gcn without loops": lambda: pyg.GCNConv(4, 2, add_self_loops=False),
    "gcn without degrees": lambda: pyg.GCNConv(4, 2, normalize=False),
}


class Adjacency:
    """As much of torch_sparse's SparseTensor as layers ask for."""

    def __init__(self, values):
        self.values = values

    def coo(self):
        return EDGES[1], EDGES[0], self.values


def _sparse(layout, values):
    found = torch.sparse_coo_tensor(EDGES.flip(0), values, (4, 4)).coalesce()
    return found.to_sparse_csr() if layout == "csr" else found


@pytest.mark.parametrize("values", [WEIGHTS, torch.ones_like(WEIGHTS)], ids=["weights", "ones"])
@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("kind", MAKE)
def test_values_of_an_adjacency_are_weights(kind, layout, values):
    theirs = MAKE[kind]().double()
    adjacency = _sparse(layout, values)
    # PyG decides once for a class whether sparse edges take a path of their own: by its first instance.
    theirs.fuse = False
    expected = theirs(X, adjacency)
    ours = copy.deepcopy(theirs)
    assert not accelerate(ours).left
    torch.testing.assert_close(ours(X, adjacency), expected)


def test_values_are_learned():
    layer = GraphConv(4, 2).double()
    values = WEIGHTS.clone().requires_grad_()
    layer(X, _sparse("coo", values)).square().sum().backward()
    found, values.grad = values.grad, None
    layer(X, EDGES, values).square().sum().backward()
    torch.testing.assert_close(found, values.grad)


@pytest.mark.parametrize(
    "make", [lambda: GraphConv(4, 2), lambda: GCNConv(4, 2, add_self_loops=False)]
)
def test_values_of_a_sparse_tensor_are_weights(make):
    layer = make().double()
    torch.testing.assert_close(layer(X, Adjacency(WEIGHTS)), layer(X, EDGES, WEIGHTS))
    torch.testing.assert_close(layer(X, Adjacency(None)), layer(X, EDGES))


def test_loops_of_a_sparse_tensor_get_the_fill_value():
    layer = GCNConv(4, 2, improved=True).double()
    is_loop = EDGES[0] == EDGES[1]
    loops = torch.arange(4).expand(2, 4)
    edges = torch.cat([EDGES[:, ~is_loop], loops], 1)
    weights = torch.cat([WEIGHTS[~is_loop], torch.full((4,), 2.0).double()])
    torch.testing.assert_close(layer(X, Adjacency(WEIGHTS)), layer(X, edges, weights))


def test_an_adjacency_is_indexed_once():
    layer, adjacency = GraphConv(4, 2).double(), _sparse("coo", WEIGHTS)
    layer(X, adjacency)
    count = len(kept_graphs._kept)
    layer(X, adjacency)
    assert len(kept_graphs._kept) == count
