"""DGL's RelGraphConv through its own weights: outputs and gradients, every option."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import RelationalGraph
from shorthaul.relational import RelGraphConv, load_dgl_state_dict
from tests.relational import dgl_stand_ins
from tests.relational.layers.parity import EDGE_INDEX, EDGE_TYPE, draw

GRAPH = dgl_stand_ins.PlainGraph(EDGE_INDEX, 40)
OPTIONS = [
    {},
    {"regularizer": "basis", "num_bases": 3},
    {"regularizer": "bdd", "num_bases": 4},
    {"self_loop": False, "bias": False},
    {"layer_norm": True, "activation": torch.relu},
]


def _pair(**options):
    torch.manual_seed(4)
    theirs = dgl_stand_ins.RelGraphConv(16, 8, 5, **options).double()
    ours = RelGraphConv(16, 8, 5, **options).double()
    load_dgl_state_dict(ours, theirs.state_dict())
    for each in (ours.function, ours.with_norm):
        each.backend = "reference"
    return ours, theirs


def _assert_same(ours, theirs, *inputs):
    x = draw(inputs[0].num_src_nodes(), 16).requires_grad_()
    arguments = inputs[0], x, *inputs[1:]
    out, expected = ours(*arguments), theirs(*arguments)
    torch.testing.assert_close(out, expected)
    arrived, named = torch.randn_like(expected), dict(theirs.named_parameters())
    names = [name for name, _ in ours.named_parameters()]
    got = torch.autograd.grad(out, [x, *ours.parameters()], arrived)
    wanted = torch.autograd.grad(expected, [x, *(named[name] for name in names)], arrived)
    for name, one, other in zip(["x", *names], got, wanted, strict=True):
        torch.testing.assert_close(one, other, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_same_as_dgl(options):
    _assert_same(*_pair(**options), GRAPH, EDGE_TYPE)


def test_same_as_dgl_compiled():
    ours, theirs = _pair(layer_norm=True)
    ours.with_norm.backend = "auto"
    norm = torch.rand(300, 1, dtype=torch.float64)
    _assert_same(ours, theirs, GRAPH, EDGE_TYPE, norm)


def test_a_factor_per_edge_of_any_shape():
    ours, theirs = _pair()
    norm, x = torch.rand(300, 1, dtype=torch.float64), draw(40, 16)
    expected = theirs(GRAPH, x, EDGE_TYPE, norm)
    torch.testing.assert_close(ours(GRAPH, x, EDGE_TYPE, norm), expected)
    torch.testing.assert_close(ours(GRAPH, x, EDGE_TYPE, norm[:, 0], presorted=True), expected)
    with pytest.raises(LayerArgumentError, match="there are 300 edges"):
        ours(GRAPH, x, EDGE_TYPE, norm[:-1])


def test_blocks():
    edges = torch.stack([EDGE_INDEX[0], EDGE_INDEX[1] % 12])
    _assert_same(*_pair(), dgl_stand_ins.PlainGraph(edges, 40, 12), EDGE_TYPE)


def test_dropout_is_torchs_own():
    ours, theirs = _pair(dropout=0.5)
    x = draw(40, 16)
    torch.manual_seed(9)
    expected = theirs(GRAPH, x, EDGE_TYPE)
    torch.manual_seed(9)
    torch.testing.assert_close(ours(GRAPH, x, EDGE_TYPE), expected)
    assert (expected == 0).any()


def test_other_graphs_than_dgls():
    ours, _ = _pair()
    x = draw(40, 16)
    graph = RelationalGraph.from_edge_index(EDGE_INDEX, EDGE_TYPE, num_nodes=40)
    torch.testing.assert_close(ours(graph, x), ours(EDGE_INDEX, x, EDGE_TYPE))
