"""PyG's GATv2 through its own weights: outputs and gradients, every option."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError, ShorthaulError
from shorthaul.graphs import NeighborSampler, RelationalGraph
from shorthaul.relational import GATv2Conv
from tests.relational.layers.parity import EDGE_INDEX, assert_same_layer, draw

pyg = pytest.importorskip("torch_geometric.nn")

OPTIONS = [
    {},
    {"heads": 2},
    {"heads": 2, "concat": False, "residual": True},
    {"share_weights": True, "negative_slope": 0.1},
    {"add_self_loops": False},
    {"bias": False, "residual": True},
    {"heads": 2, "edge_dim": 3},
    {"edge_dim": 3, "fill_value": 0.5, "share_weights": True},
    {"edge_dim": 3, "fill_value": torch.tensor([1.0, -2.0, 0.5])},
    {"edge_dim": 3, "add_self_loops": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_same_as_pyg(options):
    ours, theirs = GATv2Conv(16, 8, **options), pyg.GATv2Conv(16, 8, **options)
    more = [draw(300, 3)] if "edge_dim" in options else []
    assert_same_layer(ours, theirs, draw(40, 16), EDGE_INDEX, *more, backend="reference")


@pytest.mark.parametrize("fill", ["add", "min", "max", "mul"])
def test_ways_to_fill_loops(fill):
    options = {"edge_dim": 2, "fill_value": fill}
    ours, theirs = GATv2Conv(4, 3, **options), pyg.GATv2Conv(4, 3, **options)
    ours, theirs = ours.double(), theirs.double()
    ours.load_state_dict(theirs.state_dict())
    ours.function.backend = "reference"
    edges, x = EDGE_INDEX[:, :60], draw(40, 4)  # some nodes hear of nobody
    torch.testing.assert_close(ours(x, edges, draw(60, 2)), theirs(x, edges, draw(60, 2)))


def test_same_as_pyg_compiled():
    options = {"heads": 2, "edge_dim": 3, "residual": True}
    ours, theirs = GATv2Conv(16, 8, **options), pyg.GATv2Conv(16, 8, **options)
    assert_same_layer(ours, theirs, draw(40, 16), EDGE_INDEX, draw(300, 3))


def test_gradients_of_edge_features():
    ours, theirs = (kind(16, 8, edge_dim=3).double() for kind in (GATv2Conv, pyg.GATv2Conv))
    ours.load_state_dict(theirs.state_dict())
    ours.function.backend = "reference"
    features = draw(300, 3).requires_grad_()
    got, expected = (
        torch.autograd.grad(made(draw(40, 16), EDGE_INDEX, features).square().sum(), features)[0]
        for made in (ours, theirs)
    )
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("options", [{"residual": True}, {"heads": 2, "add_self_loops": False}])
def test_sources_and_targets_apart(options):
    ours, theirs = GATv2Conv((16, 6), 8, **options), pyg.GATv2Conv((16, 6), 8, **options)
    ours, theirs = ours.double(), theirs.double()
    ours.load_state_dict(theirs.state_dict())
    ours.functions[True, False].backend = "reference"
    edges = torch.stack([EDGE_INDEX[0], EDGE_INDEX[1] % 12])
    pair = draw(40, 16), draw(12, 6).requires_grad_()
    out, expected = ours(pair, edges), theirs(pair, edges)
    torch.testing.assert_close(out, expected)
    got, wanted = (torch.autograd.grad(each.square().sum(), pair[1])[0] for each in (out, expected))
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("options", [{"heads": 2}, {"add_self_loops": False}], ids=str)
def test_attention_is_returned_with_its_edges(options):
    ours, theirs = (kind(16, 8, **options).double() for kind in (GATv2Conv, pyg.GATv2Conv))
    ours.load_state_dict(theirs.state_dict())
    ours.functions[False, True].backend = "reference"
    out, (edges, alpha) = ours(draw(40, 16), EDGE_INDEX, return_attention_weights=True)
    expected = theirs(draw(40, 16), EDGE_INDEX, return_attention_weights=True)
    torch.testing.assert_close(out, expected[0])
    assert torch.equal(edges, expected[1][0])
    torch.testing.assert_close(alpha, expected[1][1])


def test_a_sampled_block():
    graph = RelationalGraph.from_edge_index(EDGE_INDEX, num_nodes=40)
    (block,) = NeighborSampler(graph, [3], seed=1).sample([4, 7, 9]).blocks
    layer = GATv2Conv(16, 8).double()
    for each in layer.functions.values():
        each.backend = "reference"
    x = draw(40, 16)[block.source_nodes.long()]
    out = layer(x, block)
    assert out.shape == (3, 8)
    torch.testing.assert_close(out, layer((x, x[:3]), block.edge_index()))


@pytest.mark.parametrize("is_apart", [False, True])
def test_traced_without_a_break(is_apart):
    layer = GATv2Conv(16, 4)
    for each in layer.functions.values():
        each.backend = "reference"
    x = draw(40, 16).float()
    given = (x, x[:35]) if is_apart else x
    edges = torch.stack([EDGE_INDEX[0], EDGE_INDEX[1] % 35])
    traced = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(traced(given, edges), layer(given, edges))


def test_a_graph_in_place_of_edges():
    layer = GATv2Conv(16, 8).double()
    layer.function.backend = "reference"
    graph = RelationalGraph.from_edge_index(EDGE_INDEX, num_nodes=40)
    torch.testing.assert_close(layer(draw(40, 16), graph), layer(draw(40, 16), EDGE_INDEX))


def test_dropout_only_in_training():
    layer = GATv2Conv(16, 8, dropout=0.5)
    layer.function.backend = "reference"
    x = draw(40, 16).float()
    torch.manual_seed(1)
    first = layer(x, EDGE_INDEX)
    torch.manual_seed(1)
    assert torch.equal(layer(x, EDGE_INDEX), first)
    whole = layer.eval()(x, EDGE_INDEX)
    assert torch.equal(layer(x, EDGE_INDEX), whole)
    assert not torch.equal(whole, first)


def test_initial_values():
    layer = GATv2Conv(16, 8)
    assert not layer.bias.any()
    assert not layer.lin_l.bias.any()
    assert layer.att.abs().max() <= (6 / 9) ** 0.5
    assert "16, 8, heads=1" in repr(layer)
    assert "not compiled yet" in layer.explain()


def test_bad_input_is_named():
    x = torch.randn(40, 16)
    with pytest.raises(LayerArgumentError, match="median"):
        GATv2Conv(16, 8, fill_value="median")
    with pytest.raises(LayerArgumentError, match="-1"):
        GATv2Conv(-1, 8)
    with pytest.raises(LayerArgumentError, match="cannot share"):
        GATv2Conv((4, 5), 8, share_weights=True)
    with pytest.raises(LayerArgumentError, match="edge_dim=3"):
        GATv2Conv(16, 8)(x, EDGE_INDEX, torch.randn(300, 3))
    with pytest.raises(LayerArgumentError, match="Pass edge_attr"):
        GATv2Conv(16, 8, edge_dim=3)(x, EDGE_INDEX)
    with pytest.raises(LayerArgumentError, match="299 rows"):
        GATv2Conv(16, 8, edge_dim=3)(x, EDGE_INDEX, torch.randn(299, 3))
    with pytest.raises(LayerArgumentError, match="pair of features"):
        GATv2Conv((16, 4), 8)(x, EDGE_INDEX)
    with pytest.raises(LayerArgumentError, match="targets have no features"):
        GATv2Conv(16, 8)((x, None), EDGE_INDEX)
    with pytest.raises(LayerArgumentError, match="numbers all nodes alike"):
        GATv2Conv((16, 4), 8)((x, x), RelationalGraph.from_edges([0], [1]))
    with pytest.raises(ShorthaulError, match="target"):
        GATv2Conv((16, 16), 8)((x, x[:3]), EDGE_INDEX)
    with pytest.raises(ShorthaulError, match="float"):
        GATv2Conv(16, 8)(x, EDGE_INDEX.float())
    with pytest.raises(ShorthaulError, match="39"):
        GATv2Conv(16, 8)(x[:39], EDGE_INDEX)


@pytest.mark.parametrize("options", [{}, {"add_self_loops": False}], ids=str)
def test_edge_features_without_edges(options):
    ours, theirs = (kind(16, 8, edge_dim=3, **options) for kind in (GATv2Conv, pyg.GATv2Conv))
    inputs = torch.empty(2, 0, dtype=torch.int64), draw(0, 3)
    assert_same_layer(ours, theirs, draw(40, 16), *inputs, backend="reference")
