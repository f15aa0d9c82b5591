"""Options that are set after a layer was made, or swapped: the next call follows them."""

import copy

import pytest
import torch

from shorthaul import relational
from shorthaul.relational import accelerate
from tests.relational import dgl_stand_ins
from tests.relational.layers.comparing import use_backend
from tests.relational.layers.parity import EDGE_INDEX, EDGE_TYPE, draw

pyg = pytest.importorskip("torch_geometric.nn")

METADATA = (["a", "b"], [("a", "to", "b"), ("b", "back", "a")])
X = draw(40, 16)
TYPED = {"a": X, "b": X}, dict.fromkeys(METADATA[1], EDGE_INDEX)
PYG = {
    "GATConv": (lambda: pyg.GATConv(16, 4, 2, dropout=0.5), (X, EDGE_INDEX)),
    "GATv2Conv": (lambda: pyg.GATv2Conv(16, 4, 2, dropout=0.5), (X, EDGE_INDEX)),
    "TransformerConv": (lambda: pyg.TransformerConv(16, 4, 2, dropout=0.5), (X, EDGE_INDEX)),
    "RGATConv": (lambda: pyg.RGATConv(16, 4, 5, dropout=0.5), (X, EDGE_INDEX, EDGE_TYPE)),
    "HANConv": (lambda: pyg.HANConv(16, 4, METADATA, dropout=0.5), TYPED),
}


def _one(out):
    return torch.cat(list(out.values())) if isinstance(out, dict) else out


@pytest.mark.parametrize("name", PYG)
def test_a_dropout_that_is_set_to_zero_drops_nothing(name):
    make, arguments = PYG[name]
    theirs = make().double()
    ours = copy.deepcopy(theirs)
    report = accelerate(ours)
    use_backend(ours, "reference")
    assert not torch.equal(_one(ours(*arguments)), _one(ours(*arguments)))
    for each in (ours, theirs):
        each.dropout = 0.0
    torch.testing.assert_close(_one(ours(*arguments)), _one(theirs(*arguments)))
    assert ours.function.backend == "reference"
    if hasattr(ours, "negative_slope"):
        ours.negative_slope = theirs.negative_slope = 0.9
        torch.testing.assert_close(_one(ours(*arguments)), _one(theirs(*arguments)))
    report.revert()
    assert ours.dropout == 0.0


def test_layers_of_others_follow_too():
    edge_type = EDGE_TYPE % 4
    for layer, call, name in (
        (
            relational.SimpleHGN(16, 4, 5, dropout=0.5, feature_dropout=0.5),
            lambda m: m(X.float(), EDGE_INDEX, EDGE_TYPE),
            ("dropout", "feature_dropout"),
        ),
        (
            relational.CompGCNConv(16, 4, 2, "mult", dropout=0.5),
            lambda m: m(X.float(), EDGE_INDEX, edge_type, torch.ones(4, 16))[0],
            ("dropout",),
        ),
    ):
        use_backend(layer, "reference")
        for each in name:
            setattr(layer, each, 0.0)
        torch.testing.assert_close(call(layer), call(layer))
    theirs = dgl_stand_ins.HGTConv(16, 4, 2, 2, 5, dropout=0.5)
    ours = copy.deepcopy(theirs)
    accelerate(ours)
    use_backend(ours, "reference")
    arguments = dgl_stand_ins.PlainGraph(EDGE_INDEX, 40), X.float(), EDGE_TYPE[:40] % 2, EDGE_TYPE
    ours.drop.p = theirs.drop.p = 0.0
    torch.testing.assert_close(ours(*arguments), theirs(*arguments), rtol=1e-4, atol=1e-4)


def test_degrees_that_are_left_out():
    theirs = pyg.GCNConv(16, 4, add_self_loops=False).double()
    ours = copy.deepcopy(theirs)
    accelerate(ours)
    for each in (ours, theirs):
        each.normalize = False
    torch.testing.assert_close(ours(X, EDGE_INDEX), theirs(X, EDGE_INDEX))


def test_relations_of_a_model_follow_their_layers():
    convs = {
        each: pyg.GATConv((16, 16), 4, dropout=0.5, add_self_loops=False) for each in METADATA[1]
    }
    theirs = pyg.HeteroConv(convs).double()
    ours = copy.deepcopy(theirs)
    accelerate(ours)
    ours(*TYPED)
    for model in (ours, theirs):
        for each in model.convs.values():
            each.dropout = 0.0
    torch.testing.assert_close(_one(ours(*TYPED)), _one(theirs(*TYPED)))
