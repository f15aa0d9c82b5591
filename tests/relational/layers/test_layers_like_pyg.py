"""What PyG's own tests ask of each layer that we have, asked of ours: shapes, states, forms of edges."""

import pytest
import torch

from shorthaul import relational
from shorthaul.errors import LayerArgumentError
from tests.relational.layers.comparing import use_backend
from tests.relational.layers.parity import EDGE_INDEX, EDGE_TYPE, draw

pyg = pytest.importorskip("torch_geometric.nn")
EdgeIndex = pytest.importorskip("torch_geometric").EdgeIndex

METADATA = (["a", "b"], [("a", "to", "b"), ("b", "back", "a")])
EDGES = dict.fromkeys(METADATA[1], EDGE_INDEX)
X = draw(40, 16)
# name -> arguments, what it is called with after the features, the width that comes out
LAYERS = {
    "SAGEConv": ((16, 8), (EDGE_INDEX,), 8),
    "GATConv": ((16, 8, 2), (EDGE_INDEX,), 16),
    "GATv2Conv": ((16, 8, 2), (EDGE_INDEX,), 16),
    "TransformerConv": ((16, 8, 2), (EDGE_INDEX,), 16),
    "GraphConv": ((16, 8), (EDGE_INDEX,), 8),
    "GCNConv": ((16, 8), (EDGE_INDEX,), 8),
    "GINConv": ((), (EDGE_INDEX,), 8),
    "RGCNConv": ((16, 8, 5), (EDGE_INDEX, EDGE_TYPE), 8),
    "RGATConv": ((16, 8, 5), (EDGE_INDEX, EDGE_TYPE), 8),
    "HGTConv": ((16, 8, METADATA, 2), (EDGES,), 8),
    "HANConv": ((16, 8, METADATA, 2), (EDGES,), 8),
    "HeteroConv": ((), (EDGES,), 8),
}
# What is made with layers inside, of the same package.
MADE = {
    "GINConv": lambda package: package.GINConv(torch.nn.Linear(16, 8), train_eps=True),
    "HeteroConv": lambda package: package.HeteroConv(
        {each: package.SAGEConv((16, 16), 8) for each in METADATA[1]}
    ),
}
OF_MANY_TYPES = ("HGTConv", "HANConv", "HeteroConv")
OF_ONE_GRAPH = [name for name in LAYERS if name not in OF_MANY_TYPES]
# A loop that is there already is kept by GCN among edges, and added to in an adjacency.
OF_ANY_FORM = [name for name in OF_ONE_GRAPH if name != "GCNConv"]
WITH_WIDTHS = [name for name in LAYERS if name not in MADE]


def _make(name):
    torch.manual_seed(2)
    make = MADE.get(name) or (lambda package: getattr(package, name)(*LAYERS[name][0]))
    ours, theirs = make(relational).double(), make(pyg).double()
    use_backend(ours, "reference")
    return ours, theirs


def _call(layer, name, *edges):
    x = X if name in OF_ONE_GRAPH else {"a": X, "b": X}
    out = layer(x, *(edges or LAYERS[name][1]))
    return out if name in OF_ONE_GRAPH else out["b"]


@pytest.mark.parametrize("name", LAYERS)
def test_weights_go_both_ways_and_start_anew(name):
    ours, theirs = _make(name)
    assert {key: value.shape for key, value in ours.state_dict().items()} == {
        key: value.shape for key, value in theirs.state_dict().items()
    }
    theirs.load_state_dict(ours.state_dict())
    out = _call(ours, name)
    assert out.shape == (40, LAYERS[name][2])
    torch.testing.assert_close(out, _call(theirs, name))
    others, _ = _make(name)
    others.load_state_dict(theirs.state_dict())
    assert torch.equal(_call(others, name), out)
    ours.reset_parameters()
    assert not torch.equal(_call(ours, name), out)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("name", OF_ANY_FORM)
def test_forms_of_edges(name):
    ours, _ = _make(name)
    edges, *kinds = LAYERS[name][1]
    expected = _call(ours, name)
    given = EdgeIndex(edges, sparse_size=(40, 40))
    torch.testing.assert_close(_call(ours, name, given, *kinds), expected)
    values = kinds[0] if kinds else torch.ones(300, dtype=torch.float64)
    transposed = torch.sparse_coo_tensor(edges.flip(0), values, (40, 40))
    torch.testing.assert_close(_call(ours, name, transposed), expected)


@pytest.mark.parametrize("name", WITH_WIDTHS)
def test_widths_that_are_not_known_are_refused(name):
    with pytest.raises(LayerArgumentError, match="-1"):
        getattr(relational, name)(-1, *LAYERS[name][0][1:])


@pytest.mark.parametrize("name", WITH_WIDTHS)
def test_the_text_names_the_widths_and_heads(name):
    ours, theirs = _make(name)
    told = repr(theirs).partition("(")[2].rstrip(")").split(", ")
    assert all(each in repr(ours) for each in told)
