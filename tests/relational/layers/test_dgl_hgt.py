"""DGL's HGT through its own weights: outputs and gradients, every option."""

import pytest
import torch

from shorthaul.errors import EdgeRangeError, LayerArgumentError
from shorthaul.relational import DGLHGTConv, load_dgl_state_dict
from tests.relational import dgl_stand_ins
from tests.relational.layers.parity import EDGE_INDEX, EDGE_TYPE, draw

GRAPH = dgl_stand_ins.PlainGraph(EDGE_INDEX, 40)
KINDS = torch.randint(3, (40,), generator=torch.Generator().manual_seed(2))


def _pair(*sizes, **options):
    torch.manual_seed(4)
    theirs = dgl_stand_ins.HGTConv(*sizes, 3, 5, dropout=0.0, **options).double()
    ours = DGLHGTConv(*sizes, 3, 5, dropout=0.0, **options).double()
    load_dgl_state_dict(ours, theirs.state_dict())
    ours.function.backend = "reference"
    return ours, theirs


def _assert_same(ours, theirs, graph, kinds):
    x = draw(graph.num_src_nodes(), ours.in_size).requires_grad_()
    out, expected = ours(graph, x, kinds, EDGE_TYPE), theirs(graph, x, kinds, EDGE_TYPE)
    torch.testing.assert_close(out, expected)
    arrived, named = torch.randn_like(expected), dict(theirs.named_parameters())
    names = [name for name, _ in ours.named_parameters()]
    got = torch.autograd.grad(out, [x, *ours.parameters()], arrived)
    wanted = torch.autograd.grad(expected, [x, *(named[name] for name in names)], arrived)
    for name, one, other in zip(["x", *names], got, wanted, strict=True):
        torch.testing.assert_close(one, other, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("kinds", [KINDS, KINDS.sort().values], ids=["mixed", "sorted"])
@pytest.mark.parametrize(
    ("sizes", "options"), [((8, 4, 2), {}), ((6, 4, 2), {"use_norm": True})], ids=str
)
def test_same_as_dgl(sizes, options, kinds):
    _assert_same(*_pair(*sizes, **options), GRAPH, kinds)


def test_same_as_dgl_compiled():
    ours, theirs = _pair(6, 4, 2)
    ours.function.backend = "auto"
    _assert_same(ours, theirs, GRAPH, KINDS)


@pytest.mark.parametrize("kinds", [KINDS, KINDS.sort().values], ids=["mixed", "sorted"])
def test_blocks(kinds):
    edges = torch.stack([EDGE_INDEX[0], EDGE_INDEX[1] % 12])
    _assert_same(*_pair(8, 4, 2), dgl_stand_ins.PlainGraph(edges, 40, 12), kinds)


def test_dropout_only_while_training():
    torch.manual_seed(0)
    layer = DGLHGTConv(8, 4, 2, 3, 5, dropout=0.5)
    layer.function.backend = "reference"
    x = torch.randn(40, 8)
    assert not torch.equal(*(layer(GRAPH, x, KINDS, EDGE_TYPE) for _ in range(2)))
    layer.eval()
    assert torch.equal(*(layer(GRAPH, x, KINDS, EDGE_TYPE) for _ in range(2)))


def test_types_of_nodes_that_do_not_fit():
    layer, x = DGLHGTConv(8, 4, 2, 3, 5), torch.randn(40, 8)
    with pytest.raises(EdgeRangeError, match="is 3, but there are 3 types of nodes"):
        layer(GRAPH, x, KINDS + 1, EDGE_TYPE)
    with pytest.raises(LayerArgumentError, match="ntype has 39 numbers, but there are 40 nodes"):
        layer(GRAPH, x, KINDS[:-1], EDGE_TYPE)
