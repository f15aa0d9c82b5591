"""PyG's RGCN through its own weights: outputs and gradients, every option."""

import pytest
import torch

from shorthaul.errors import EdgeRangeError, GraphChangedError, LayerArgumentError
from shorthaul.graphs import NeighborSampler, RelationalGraph
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


@pytest.mark.parametrize("aggr", ["mean", "add", "max"])
@pytest.mark.parametrize("bases", [None, 3])
def test_nodes_by_number(bases, aggr):
    ours = RGCNConv(40, 8, 5, num_bases=bases, aggr=aggr)
    theirs = pyg.RGCNConv(40, 8, 5, num_bases=bases, aggr=aggr)
    assert_same_layer(ours, theirs, None, EDGE_INDEX, EDGE_TYPE, backend="reference")


@pytest.mark.parametrize("bases", [None, 3])
def test_nodes_by_number_compiled(bases):
    ours = RGCNConv(40, 8, 5, num_bases=bases)
    theirs = pyg.RGCNConv(40, 8, 5, num_bases=bases)
    assert_same_layer(ours, theirs, None, EDGE_INDEX, EDGE_TYPE)


@pytest.mark.parametrize("bases", [None, 3])
def test_some_nodes_by_number(bases):
    ours, theirs = RGCNConv(90, 8, 5, num_bases=bases), pyg.RGCNConv(90, 8, 5, num_bases=bases)
    ours.load_state_dict(theirs.state_dict())
    ours.by_number.backend = "reference"
    numbers = torch.randperm(90, generator=torch.Generator().manual_seed(1))[:40]
    out = ours(numbers, EDGE_INDEX, EDGE_TYPE)
    torch.testing.assert_close(out, theirs(numbers, EDGE_INDEX, EDGE_TYPE))


@pytest.mark.parametrize("x", [None, torch.randn(40, 40)], ids=["numbers", "features"])
def test_a_graph_that_was_changed_is_refused(x):
    edges = EDGE_INDEX.to(torch.int32)
    graph = RelationalGraph.from_edge_index(edges, EDGE_TYPE, num_nodes=40)
    layer = RGCNConv(40, 8, 5)
    layer.function.backend = layer.by_number.backend = "reference"
    layer(x, graph)
    edges[0, 3] = 7
    with pytest.raises(GraphChangedError, match="`source`"):
        layer(x, graph)


def test_more_nodes_than_the_table_has_rows():
    ours, theirs = RGCNConv(3, 8, 2), pyg.RGCNConv(3, 8, 2)
    ours.load_state_dict(theirs.state_dict())
    ours.by_number.backend = "reference"
    numbers = torch.arange(40) % 3
    out, expected = (each(numbers, EDGE_INDEX, EDGE_TYPE % 2) for each in (ours, theirs))
    torch.testing.assert_close(out, expected)
    got, wanted = (
        torch.autograd.grad(value.square().sum(), layer.weight)[0]
        for value, layer in ((out, ours), (expected, theirs))
    )
    torch.testing.assert_close(got, wanted)


def test_numbers_beyond_the_table_are_named():
    numbers = torch.arange(40)
    numbers[7] = 44
    with pytest.raises(EdgeRangeError, match="44, but there are 40 nodes in the layer's table"):
        RGCNConv(40, 8, 5)(numbers, EDGE_INDEX, EDGE_TYPE)
    with pytest.raises(LayerArgumentError, match="blocks do not take"):
        RGCNConv(40, 8, 5, num_blocks=4)(None, EDGE_INDEX, EDGE_TYPE)


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("counts", [(40, 12), (12, 40)])
def test_sources_and_targets_apart(counts, backend):
    ours, theirs = RGCNConv(16, 8, 5).double(), pyg.RGCNConv((16, 16), 8, 5).double()
    ours.load_state_dict(theirs.state_dict())
    ours.apart.backend = backend
    edges = torch.stack([EDGE_INDEX[0] % counts[0], EDGE_INDEX[1] % counts[1]])
    pair = tuple(draw(count, 16).requires_grad_() for count in counts)
    out, expected = ours(pair, edges, EDGE_TYPE), theirs(pair, edges, EDGE_TYPE)
    torch.testing.assert_close(out, expected)
    got, wanted = (torch.autograd.grad(each.square().sum(), pair) for each in (out, expected))
    torch.testing.assert_close(got, wanted)


def test_a_sampled_block_is_the_graph_at_its_targets():
    graph = RelationalGraph.from_edge_index(EDGE_INDEX, EDGE_TYPE, num_nodes=40)
    seeds = torch.tensor([3, 17, 22])
    (block,) = NeighborSampler(graph, [-1]).sample(seeds).blocks
    layer, x = RGCNConv(16, 8, 5).double(), draw(40, 16)
    layer.function.backend = "reference"
    torch.testing.assert_close(layer(x[block.source_nodes], block), layer(x, graph)[seeds])


@pytest.mark.parametrize(
    "options", [{"num_bases": 2, "num_blocks": 2}, {"aggr": "median"}, {"num_blocks": 3}]
)
def test_options_that_do_not_go_together(options):
    with pytest.raises(LayerArgumentError):
        RGCNConv(16, 8, 5, **options)


def test_bad_input_is_named():
    layer, x = RGCNConv(16, 8, 4), torch.randn(40, 16)
    with pytest.raises(EdgeRangeError, match="is 4, but there are 4 relations"):
        layer(x, EDGE_INDEX, EDGE_TYPE)
    with pytest.raises(EdgeRangeError, match="but there are 30 nodes"):
        layer(x[:30], EDGE_INDEX, EDGE_TYPE % 4)
    with pytest.raises(LayerArgumentError, match=r"`x` has shape \(40, 15\), expected \(40, 16\)"):
        layer(x[:, :15], EDGE_INDEX, EDGE_TYPE % 4)
    layer.weight.data = layer.weight.data[:3]
    with pytest.raises(
        LayerArgumentError, match=r"`weight` has shape \(3, 16, 8\), .*4 relation rows"
    ):
        layer(x, EDGE_INDEX, EDGE_TYPE % 4)
