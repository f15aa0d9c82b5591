"""PyG's SAGE through its own weights."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.relational import SAGEConv
from tests.relational.layers.parity import EDGE_INDEX, assert_same_layer, draw

pyg = pytest.importorskip("torch_geometric.nn")


@pytest.mark.parametrize(
    "options",
    [{}, {"aggr": "max"}, {"aggr": "add"}, {"root_weight": False}, {"bias": False}],
    ids=str,
)
def test_same_as_pyg(options):
    ours, theirs = SAGEConv(16, 8, **options), pyg.SAGEConv(16, 8, **options)
    assert_same_layer(ours, theirs, draw(40, 16), EDGE_INDEX, backend="reference")


def test_aggregations_that_are_not_there():
    with pytest.raises(LayerArgumentError, match="median"):
        SAGEConv(4, 4, aggr="median")


def test_compiled():
    torch.manual_seed(0)
    layer = SAGEConv(16, 8)
    x = torch.randn(40, 16)
    got = layer(x, EDGE_INDEX)
    layer.function.backend = "reference"
    torch.testing.assert_close(got, layer(x, EDGE_INDEX))
