"""PyG's SAGE through its own weights."""

import pytest
import torch

import shorthaul as sh
from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import NeighborSampler, RelationalGraph
from shorthaul.relational import SAGEConv
from tests.relational.layers.parity import EDGE_INDEX, assert_same_layer, draw

pyg = pytest.importorskip("torch_geometric.nn")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"aggr": "max"},
        {"aggr": "add"},
        {"aggr": ["mean", "max", "add"]},
        {"aggr": ["max", "min"], "project": True, "root_weight": False},
        {"root_weight": False},
        {"bias": False},
        {"normalize": True},
        {"project": True},
    ],
    ids=str,
)
def test_same_as_pyg(options):
    ours, theirs = SAGEConv(16, 8, **options), pyg.SAGEConv(16, 8, **options)
    assert_same_layer(ours, theirs, draw(40, 16), EDGE_INDEX, backend="reference")


@pytest.mark.parametrize("widths", [(16, 16), (16, 5)])
def test_sources_and_targets_apart(widths):
    ours, theirs = SAGEConv(widths, 8).double(), pyg.SAGEConv(widths, 8).double()
    ours.load_state_dict(theirs.state_dict())
    ours.apart.backend = "reference"
    edges = torch.stack([EDGE_INDEX[0], EDGE_INDEX[1] % 12])
    pair = draw(40, widths[0]), draw(12, widths[1])
    torch.testing.assert_close(ours(pair, edges), theirs(pair, edges))
    alone = pair[0], None
    got = ours(alone, edges, size=(40, 12))
    torch.testing.assert_close(got, theirs(alone, edges, size=(40, 12)))


@pytest.mark.parametrize("root_weight", [True, False])
def test_projected_on_a_graph_and_on_a_block(root_weight):
    options = {"project": True, "root_weight": root_weight}
    layer, x = SAGEConv(16, 8, **options).double(), draw(40, 16)
    layer.apart.backend = "reference"
    graph = RelationalGraph.from_edge_index(EDGE_INDEX, num_nodes=40)
    expected = layer(x, EDGE_INDEX)
    torch.testing.assert_close(layer(x, graph), expected)
    (block,) = NeighborSampler(graph, [-1]).sample([3, 17]).blocks
    torch.testing.assert_close(layer(x[block.source_nodes], block), expected[[3, 17]])
    torch.testing.assert_close(layer(sh.unified(x), block), expected[[3, 17]])


def test_widths_that_do_not_fit_are_named():
    with pytest.raises(LayerArgumentError, match=r"`x` has shape \(40, 9\), expected \(40, 16\)"):
        SAGEConv(16, 8)(torch.randn(40, 9), EDGE_INDEX)
    with pytest.raises(LayerArgumentError, match="pair of features"):
        SAGEConv((16, 5), 8)(torch.randn(40, 16), EDGE_INDEX)


def test_aggregations_that_are_not_there():
    with pytest.raises(LayerArgumentError, match="median"):
        SAGEConv(4, 4, aggr="median")
    with pytest.raises(LayerArgumentError, match="median"):
        SAGEConv(4, 4, aggr=["mean", "median"])
    with pytest.raises(LayerArgumentError, match="aggr is empty"):
        SAGEConv(4, 4, aggr=[])


def test_compiled():
    torch.manual_seed(0)
    layer = SAGEConv(16, 8)
    x = torch.randn(40, 16)
    got = layer(x, EDGE_INDEX)
    layer.function.backend = "reference"
    torch.testing.assert_close(got, layer(x, EDGE_INDEX))
