"""DGL's weights go where they belong, and nowhere else."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.relational import (
    DGLHGTConv,
    HGTConv,
    RelGraphConv,
    RGCNConv,
    SAGEConv,
    load_dgl_state_dict,
)
from tests.relational import dgl_stand_ins
from tests.relational.layers.parity import EDGE_INDEX, EDGE_TYPE, draw

GRAPH = dgl_stand_ins.PlainGraph(EDGE_INDEX, 40)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {}),
        ({"regularizer": "basis", "num_bases": 4}, {"num_bases": 4}),
        ({"regularizer": "bdd", "num_bases": 4}, {"num_blocks": 4}),
        ({"self_loop": False, "bias": False}, {"root_weight": False, "bias": False}),
    ],
    ids=str,
)
def test_a_convolution_of_either_kind(theirs, ours):
    dgl = dgl_stand_ins.RelGraphConv(16, 8, 5, **theirs).double()
    layer = RGCNConv(16, 8, 5, aggr="add", **ours).double()
    layer.function.backend = "reference"
    load_dgl_state_dict(layer, dgl.state_dict())
    x = draw(40, 16)
    torch.testing.assert_close(layer(x, GRAPH, EDGE_TYPE), dgl(GRAPH, x, EDGE_TYPE))


def test_layers_under_dgls_names():
    for ours, theirs in (
        (RelGraphConv(16, 8, 5), dgl_stand_ins.RelGraphConv(16, 8, 5)),
        (DGLHGTConv(16, 4, 4, 3, 5), dgl_stand_ins.HGTConv(16, 4, 4, 3, 5)),
    ):
        load_dgl_state_dict(ours, theirs.state_dict())
        for name, value in ours.state_dict().items():
            assert torch.equal(value, theirs.state_dict()[name])


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (RGCNConv(16, 8, 5), "aggr='mean'"),
        (RGCNConv(16, 8, 5, aggr="add", bias=False), "no place for bias"),
        (RGCNConv(16, 8, 4, aggr="add"), r"`weight` has shape \(5, 16, 8\), the layer's has \(4,"),
        (RelGraphConv(16, 8, 5, layer_norm=True), "layer_norm_weight.weight.* would stay"),
        (HGTConv(8, 8, (["a"], [("a", "b", "a")])), "make a DGLHGTConv"),
        (SAGEConv(4, 4), "no counterpart in DGL"),
    ],
)
def test_weights_that_do_not_fit_are_named(layer, message):
    state = dgl_stand_ins.RelGraphConv(16, 8, 5).state_dict()
    with pytest.raises(LayerArgumentError, match=f"(?is){message}"):
        load_dgl_state_dict(layer, state)
