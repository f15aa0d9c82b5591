"""Simple-HGN against the same mathematics in plain PyTorch, parameter by parameter."""

import pytest
import torch
from torch.nn import functional

from shorthaul.errors import LayerArgumentError, ShorthaulError
from shorthaul.relational import SimpleHGN
from tests.relational.layers.parity import EDGE_INDEX, EDGE_TYPE, draw

OPTIONS = [
    {},
    {"heads": 2, "residual": True, "bias": True},
    {"heads": 2, "residual": True, "in_channels": 8, "negative_slope": 0.05},
]


def _softmax(logit, target, nodes):
    power = (logit - logit.max()).exp()
    total = torch.zeros(nodes, logit.shape[1], dtype=logit.dtype).index_add(0, target, power)
    return power / total[target]


def _plainly(layer, x, last=None):
    """The authors' equations, edge by edge."""
    source, target = EDGE_INDEX
    heads, out = layer.heads, layer.out_channels
    value = (x @ layer.fc.weight.t()).reshape(-1, heads, out)
    kinds = (layer.edge_emb.weight[EDGE_TYPE] @ layer.fc_e.weight.t()).reshape(300, heads, -1)
    logit = (value[source] * layer.attn_l).sum(-1) + (value[target] * layer.attn_r).sum(-1)
    logit = functional.leaky_relu(logit + (kinds * layer.attn_e).sum(-1), layer.negative_slope)
    alpha = _softmax(logit, target, x.shape[0])
    if last is not None:
        alpha = (1 - layer.beta) * alpha + layer.beta * last
    result = torch.zeros_like(value).index_add(0, target, alpha.unsqueeze(-1) * value[source])
    if layer.res_fc is not None:
        result = result + (x @ layer.res_fc.weight.t()).reshape(-1, heads, out)
    elif layer.residual:
        result = result + x.unsqueeze(1)
    if layer.bias_param is not None:
        result = result + layer.bias_param
    return result.flatten(1), alpha


def _make(backend="reference", in_channels=16, **options):
    torch.manual_seed(5)
    layer = SimpleHGN(in_channels, 8, num_relations=5, edge_dim=6, **options).double()
    for each in layer.functions.values():
        each.backend = backend
    if layer.bias_param is not None:
        torch.nn.init.normal_(layer.bias_param)
    return layer, draw(40, in_channels).requires_grad_()


def _compare(layer, x, made, expected):
    torch.testing.assert_close(made, expected)
    tensors, arrived = [x, *layer.parameters()], torch.randn_like(made)
    got = torch.autograd.grad(made, tensors, arrived)
    wanted = torch.autograd.grad(expected, tensors, arrived)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_outputs_and_gradients(options):
    layer, x = _make(**options)
    _compare(layer, x, layer(x, EDGE_INDEX, EDGE_TYPE), _plainly(layer, x)[0])


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_attention_of_the_last_layer_and_of_this_one(backend):
    layer, x = _make(backend, heads=2, beta=0.3)
    last = draw(300, 2).abs()  # other than its own, and unlike on every edge
    made, attention = layer(x, EDGE_INDEX, EDGE_TYPE, last, return_attention_weights=True)
    expected, plain_attention = _plainly(layer, x, last)
    torch.testing.assert_close(attention, plain_attention.detach())
    assert not attention.requires_grad
    _compare(layer, x, made, expected)


def test_attention_goes_from_layer_to_layer():
    layer, x = _make(heads=2, beta=0.3)
    _, first = layer(x, EDGE_INDEX, EDGE_TYPE, return_attention_weights=True)
    torch.testing.assert_close(first, _plainly(layer, x)[1].detach())
    made = layer(x, EDGE_INDEX, EDGE_TYPE, first)
    torch.testing.assert_close(made, _plainly(layer, x, first)[0])


def test_traced_without_a_break():
    layer, x = _make(heads=2, beta=0.3)
    traced = torch.compile(layer, fullgraph=True, backend="aot_eager")
    arguments = x, EDGE_INDEX, EDGE_TYPE, draw(300, 2), True
    torch.testing.assert_close(traced(*arguments), layer(*arguments))


def test_dropout_only_in_training():
    layer, x = _make(dropout=0.4, feature_dropout=0.3)
    whole = layer.eval()(x, EDGE_INDEX, EDGE_TYPE)
    torch.testing.assert_close(whole, _plainly(layer, x)[0])
    layer.train()
    torch.manual_seed(1)
    first = layer(x, EDGE_INDEX, EDGE_TYPE)
    torch.manual_seed(1)
    assert torch.equal(first, layer(x, EDGE_INDEX, EDGE_TYPE))
    assert not torch.equal(first, whole)


def test_activation_and_names():
    layer, x = _make(activation=functional.elu, bias=True, residual=True)
    expected = functional.elu(_plainly(layer, x)[0])
    torch.testing.assert_close(layer(x, EDGE_INDEX, EDGE_TYPE), expected)
    assert set(layer.state_dict()) == {
        "attn_l",
        "attn_r",
        "attn_e",
        "bias_param",
        "edge_emb.weight",
        "fc.weight",
        "fc_e.weight",
        "res_fc.weight",
    }
    assert "num_relations=5, edge_dim=6, heads=1" in repr(layer)
    assert "simple_hgn" in layer.explain()


def test_bad_input_is_named():
    layer, x = _make(heads=2)
    with pytest.raises(LayerArgumentError, match=r"\(299, 2\), expected \(300, 2\)"):
        layer(x, EDGE_INDEX, EDGE_TYPE, torch.ones(299, 2).double())
    with pytest.raises(LayerArgumentError, match="beta is 2"):
        SimpleHGN(4, 4, 1, beta=2)
    with pytest.raises(LayerArgumentError, match="edge_type"):
        layer(x, EDGE_INDEX)
    with pytest.raises(ShorthaulError, match="relation"):
        SimpleHGN(16, 8, 4).double()(x, EDGE_INDEX, EDGE_TYPE)
