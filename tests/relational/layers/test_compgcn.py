"""CompGCN against the authors' equations in plain PyTorch, parameter by parameter."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError, ShorthaulError
from shorthaul.relational import CompGCNConv
from shorthaul.relational.layers.compgcn import _fourier_matrices
from tests.relational.layers.parity import EDGE_INDEX, EDGE_TYPE, draw

TYPES = EDGE_TYPE % 4  # two relations and their inverses


def _compose(x, relation, opn):
    if opn == "corr":  # out[k] = sum over i of x[i] relation[i + k]
        turned = torch.fft.rfft(x).conj() * torch.fft.rfft(relation)
        return torch.fft.irfft(turned, n=x.shape[-1])
    return x - relation if opn == "sub" else x * relation


def _plainly(layer, x, relations):
    source, target = EDGE_INDEX
    out = _compose(x, layer.loop_rel, layer.opn) @ layer.w_loop
    for is_inverse, weight in ((False, layer.w_in), (True, layer.w_out)):
        chosen = (TYPES >= 2) == is_inverse
        degree = torch.bincount(target[chosen], minlength=40).double()
        root = torch.where(degree > 0, degree**-0.5, 0)
        ends = source[chosen], target[chosen]
        message = _compose(x[ends[0]], relations[TYPES[chosen]], layer.opn) @ weight
        message = message * (root[ends[0]] * root[ends[1]]).unsqueeze(1)
        out = out.index_add(0, ends[1], message)
    out = out / 3
    if layer.bias is not None:
        out = out + layer.bias
    return (out if layer.bn is None else layer.bn(out)), relations @ layer.w_rel


def _make(backend="reference", width=6, **options):
    torch.manual_seed(3)
    layer = CompGCNConv(width, 5, num_relations=2, **options).double()
    layer.function.backend = backend
    if layer.bias is not None:
        torch.nn.init.normal_(layer.bias)
    return layer, draw(40, width).requires_grad_(), draw(4, width).requires_grad_()


CASES = [
    ({"opn": "sub", "bias": True}, "reference"),
    ({"opn": "mult", "batch_norm": False}, "reference"),
    ({"opn": "corr", "batch_norm": False}, "reference"),
    ({"opn": "corr", "width": 7}, "reference"),
    ({"opn": "corr", "bias": True}, "auto"),
]


@pytest.mark.parametrize(("options", "backend"), CASES, ids=str)
def test_outputs_and_gradients(options, backend):
    layer, x, relations = _make(backend, **options)
    made = layer(x, EDGE_INDEX, TYPES, relations)
    expected = _plainly(layer, x, relations)
    for one, other in zip(made, expected, strict=True):
        torch.testing.assert_close(one, other)
    tensors = [x, relations, *layer.parameters()]
    arrived = [torch.randn_like(each) for each in expected]
    got = torch.autograd.grad(made, tensors, arrived)
    wanted = torch.autograd.grad(expected, tensors, arrived)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_spectra_and_back(width):
    there, back = _fourier_matrices(width)
    x = draw(3, width)
    spectrum = torch.fft.rfft(x)
    torch.testing.assert_close(x @ there, torch.cat([spectrum.real, spectrum.imag], 1))
    torch.testing.assert_close(x @ there @ back, x)


def test_traced_without_a_break():
    layer, x, relations = _make(opn="corr")
    traced = torch.compile(layer.eval(), fullgraph=True, backend="aot_eager")
    made, expected = (each(x, EDGE_INDEX, TYPES, relations) for each in (traced, layer))
    torch.testing.assert_close(made, expected)


def test_dropout_and_activation():
    layer, x, relations = _make(opn="sub", dropout=0.5, batch_norm=False, activation=torch.tanh)
    whole, _ = layer.eval()(x, EDGE_INDEX, TYPES, relations)
    torch.testing.assert_close(whole, _plainly(layer, x, relations)[0].tanh())
    layer.train()
    torch.manual_seed(1)
    first, _ = layer(x, EDGE_INDEX, TYPES, relations)
    torch.manual_seed(1)
    assert torch.equal(layer(x, EDGE_INDEX, TYPES, relations)[0], first)
    assert not torch.equal(first, whole)


def test_names_of_parameters():
    layer, _, _ = _make(bias=True)
    names = {"w_loop", "w_in", "w_out", "w_rel", "loop_rel", "bias", "bn.weight", "bn.bias"}
    assert {name for name, _ in layer.named_parameters()} == names
    assert "6, 5, num_relations=2, opn='corr'" in repr(layer)
    assert "compgcn" in layer.explain()


def test_bad_input_is_named():
    layer, x, relations = _make()
    with pytest.raises(LayerArgumentError, match="opn is 'add'"):
        CompGCNConv(4, 4, 1, opn="add")
    with pytest.raises(LayerArgumentError, match=r"\(3, 6\), expected \(4, 6\)"):
        layer(x, EDGE_INDEX, TYPES, relations[:3])
    with pytest.raises(LayerArgumentError, match="edge_type"):
        layer(x, EDGE_INDEX, None, relations)
    with pytest.raises(ShorthaulError, match="relation"):
        layer(x, EDGE_INDEX, EDGE_TYPE, relations)
