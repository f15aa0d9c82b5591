"""PyG's RGAT through its own weights: outputs and gradients, every option."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.relational import RGATConv
from tests.relational.layers.parity import EDGE_INDEX, EDGE_TYPE, assert_same_layer, draw

pyg = pytest.importorskip("torch_geometric.nn")

OPTIONS = [
    {},
    {"num_bases": 3},
    {"num_blocks": 4},
    {"heads": 2},
    {"heads": 2, "concat": False},
    {"mod": "additive"},
    {"mod": "scaled", "heads": 2},
    {"mod": "f-additive"},
    {"mod": "f-scaled"},
    {"edge_dim": 3, "heads": 2},
    {"bias": False},
]
MODES = [("additive-self-attention", 1), ("multiplicative-self-attention", 2)]


@pytest.mark.filterwarnings("ignore:.*scatter.*")
@pytest.mark.parametrize("mechanism", ["across-relation", "within-relation"])
@pytest.mark.parametrize(("mode", "dim"), MODES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_same_as_pyg(mechanism, mode, dim, options):
    chosen = {"attention_mechanism": mechanism, "attention_mode": mode, "dim": dim, **options}
    ours, theirs = RGATConv(16, 8, 5, **chosen), pyg.RGATConv(16, 8, 5, **chosen)
    more = [draw(300, 3)] if "edge_dim" in options else []
    assert_same_layer(ours, theirs, draw(40, 16), EDGE_INDEX, EDGE_TYPE, *more, backend="reference")


@pytest.mark.parametrize(
    "options", [{"heads": 2, "attention_mechanism": "within-relation"}], ids=str
)
def test_same_as_pyg_compiled(options):
    ours, theirs = RGATConv(16, 8, 5, **options), pyg.RGATConv(16, 8, 5, **options)
    assert_same_layer(ours, theirs, draw(40, 16), EDGE_INDEX, EDGE_TYPE)


def test_initial_values():
    layer = RGATConv(16, 8, 5)
    assert torch.equal(layer.l2, torch.full((8, 8), 1 / 8))
    assert not layer.bias.any()


@pytest.mark.parametrize(
    "options",
    [
        {"mod": "best"},
        {"attention_mode": "self"},
        {"dim": 2},
        {"dropout": 0.5, "mod": "additive"},
        {"num_bases": 2, "num_blocks": 2},
        {"num_blocks": 3},
    ],
    ids=str,
)
def test_options_that_do_not_go_together(options):
    with pytest.raises(LayerArgumentError):
        RGATConv(16, 8, 5, **options)


def test_edge_features_must_match_the_layer():
    with pytest.raises(LayerArgumentError, match="edge_dim=3"):
        RGATConv(16, 8, 5)(torch.randn(40, 16), EDGE_INDEX, EDGE_TYPE, torch.randn(300, 3))
    with pytest.raises(LayerArgumentError, match="Pass edge_attr"):
        RGATConv(16, 8, 5, edge_dim=3)(torch.randn(40, 16), EDGE_INDEX, EDGE_TYPE)
