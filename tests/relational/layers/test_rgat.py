"""PyG's RGAT through its own weights: outputs and gradients, every option."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.relational import RGATConv
from tests.relational.layers.comparing import use_backend
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


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_f_additive_adds_to_every_share_however_small(backend):
    # By Zhang and Xie's formula it is the sum of the values, once more. PyG adds nothing where the share
    # has become zero, which depends on the dtype, so its `additive` with a `w` of ones is asked.
    options = {"heads": 3, "concat": False, "edge_dim": 2}
    options["attention_mechanism"] = "within-relation"
    ours = RGATConv(1, 4, 3, mod="f-additive", **options)
    theirs = pyg.RGATConv(1, 4, 3, mod="additive", **options)
    with torch.no_grad():
        for name, each in theirs.named_parameters():
            each.copy_(draw(*each.shape) * 2 if name != "w" else torch.ones(4))
    ours.load_state_dict(theirs.state_dict())
    ours.function.backend = backend
    inputs = draw(20, 1), EDGE_INDEX[:, :120] % 20, EDGE_TYPE[:120] % 3, draw(120, 2) * 9
    expected, (_, shares) = theirs.double()(*inputs, return_attention_weights=True)
    assert shares[shares > 0].min() < 1e-60  # zero in float32
    got = ours(*(each.float() if each.is_floating_point() else each for each in inputs))
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_edge_features_without_edges(backend):
    ours, theirs = RGATConv(16, 8, 5, edge_dim=3), pyg.RGATConv(16, 8, 5, edge_dim=3)
    inputs = torch.empty(2, 0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), draw(0, 3)
    assert_same_layer(ours, theirs, draw(40, 16), *inputs, backend=backend)


@pytest.mark.parametrize("counts", [(40, 12), (12, 40)])
def test_sources_and_targets_apart(counts):
    ours, theirs = RGATConv(16, 8, 5, heads=2).double(), pyg.RGATConv(16, 8, 5, heads=2).double()
    ours.load_state_dict(theirs.state_dict())
    use_backend(ours, "reference")
    edges = torch.stack([EDGE_INDEX[0] % counts[0], EDGE_INDEX[1] % counts[1]])
    pair = tuple(draw(count, 16).requires_grad_() for count in counts)
    out, expected = (each(pair, edges, EDGE_TYPE, size=counts) for each in (ours, theirs))
    torch.testing.assert_close(out, expected)
    got, wanted = (torch.autograd.grad(each.square().sum(), pair) for each in (out, expected))
    torch.testing.assert_close(got, wanted)
    with pytest.raises(LayerArgumentError, match="the graph has 9 and 9"):
        ours(pair, edges, EDGE_TYPE, size=(9, 9))


@pytest.mark.parametrize("answer", [True, False])  # as in PyG, either asks for them
def test_attention_is_returned_with_its_edges(answer):
    options = {"attention_mode": "multiplicative-self-attention", "dim": 3, "mod": "f-scaled"}
    ours, theirs = (kind(16, 8, 5, **options).double() for kind in (RGATConv, pyg.RGATConv))
    ours.load_state_dict(theirs.state_dict())
    use_backend(ours, "reference")
    out, (edges, share) = ours(draw(40, 16), EDGE_INDEX, EDGE_TYPE, return_attention_weights=answer)
    expected = theirs(draw(40, 16), EDGE_INDEX, EDGE_TYPE, return_attention_weights=answer)
    torch.testing.assert_close((out, share), (expected[0], expected[1][1]))
    assert torch.equal(edges, EDGE_INDEX)
