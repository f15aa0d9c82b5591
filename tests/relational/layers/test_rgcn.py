"""PyG's RGCN through its own weights: outputs and gradients, every option."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.relational import RGCNConv
from tests.relational.layers.parity import EDGE_INDEX, EDGE_TYPE, assert_same_layer, draw

pyg = pytest.importorskip("torch_geometric.nn")

OPTIONS = [
    {},
    {"aggr": "add"},
    {"aggr": "max"},
    {"num_bases": 3},
    {"num_blocks": 4},
    {"root_weight": False, "bias": False},
    {"num_bases": 2, "aggr": "max"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_same_as_pyg(options):
    ours, theirs = RGCNConv(16, 8, 5, **options), pyg.RGCNConv(16, 8, 5, **options)
    assert_same_layer(ours, theirs, draw(40, 16), EDGE_INDEX, EDGE_TYPE, backend="reference")


def test_same_as_pyg_compiled():
    ours, theirs = RGCNConv(16, 8, 5, num_bases=3), pyg.RGCNConv(16, 8, 5, num_bases=3)
    assert_same_layer(ours, theirs, draw(40, 16), EDGE_INDEX, EDGE_TYPE)


@pytest.mark.parametrize("bases", [None, 3])
def test_nodes_by_number(bases):
    ours = RGCNConv(40, 8, 5, num_bases=bases)
    theirs = pyg.RGCNConv(40, 8, 5, num_bases=bases)
    assert_same_layer(ours, theirs, None, EDGE_INDEX, EDGE_TYPE, backend="reference")


def test_sources_and_targets_apart():
    ours, theirs = RGCNConv(16, 8, 5).double(), pyg.RGCNConv((16, 16), 8, 5).double()
    ours.load_state_dict(theirs.state_dict())
    ours.function.backend = "reference"
    edges = torch.stack([EDGE_INDEX[0], EDGE_INDEX[1] % 12])
    pair = draw(40, 16), draw(12, 16)
    torch.testing.assert_close(ours(pair, edges, EDGE_TYPE), theirs(pair, edges, EDGE_TYPE))


@pytest.mark.parametrize(
    "options", [{"num_bases": 2, "num_blocks": 2}, {"aggr": "median"}, {"num_blocks": 3}]
)
def test_options_that_do_not_go_together(options):
    with pytest.raises(LayerArgumentError):
        RGCNConv(16, 8, 5, **options)


def test_a_relation_out_of_range_is_named():
    from shorthaul.errors import ShorthaulError

    with pytest.raises(ShorthaulError, match="relation"):
        RGCNConv(16, 8, 4)(torch.randn(40, 16), EDGE_INDEX, EDGE_TYPE)
