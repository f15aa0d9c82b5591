"""The operators by themselves: tokens, names, shapes, and gradients when the token is lost."""

import gc
import weakref

import pytest
import torch

from shorthaul.errors import LayerArgumentError, SecondDerivativeError
from shorthaul.relational.runtime.torch_operator import (
    find_function,
    make_token,
    read_token,
    record_call,
    relational_backward,
    relational_forward,
)
from tests.relational.programs import convolve, everything, sample_graph, widths_of

GRAPH = sample_graph()


class _Saved:
    pass


def _arguments(module, *features, gradients=()):
    tensors = [*features, *module.parameters()]
    names = [*module.function.feature_names, *dict(module.named_parameters())]
    ordered = dict(zip(names, tensors, strict=True))
    values = [ordered[name] for name in module.function.input_names]
    nodes = list(GRAPH.nodes_per_type)
    columns = [GRAPH.source, GRAPH.target, GRAPH.relation]
    sizes = nodes, GRAPH.num_nodes, GRAPH.num_relations, GRAPH.num_edges
    ends = [0, 0, 0, 1, 1, 0, 1, 1] * 4
    call = (values, columns, None, module.function.name, "columns", *sizes, ends, False)
    return call, list(gradients)


def _module(definition=convolve):
    return definition(relations=16, node_types=2, **widths_of(definition)).double()


def test_a_token_owns_what_was_saved_until_it_is_freed():
    saved = _Saved()
    alive = weakref.ref(saved)
    token = make_token(saved)
    copied = token.clone()
    assert read_token(token) is saved
    view = token[:1]
    del saved, token
    assert read_token(view) is alive()
    del view
    gc.collect()
    assert alive() is None
    assert read_token(copied) is None


def test_gradients_are_the_same_when_the_token_was_copied():
    module = _module()
    x = torch.randn(GRAPH.num_nodes, 5, dtype=torch.float64)
    call, wanted = _arguments(module, x, gradients=[0, 1])
    out, token = relational_forward.overload(*call, wanted)
    arrived = [torch.randn_like(out)]
    one = relational_backward.overload(arrived, token, *call, wanted)
    other = relational_backward.overload(arrived, token.clone(), *call, wanted)
    for first, second in zip(one, other, strict=True):
        assert torch.equal(first, second)


def test_the_operators_keep_pytorchs_promises():
    module = _module()
    x = torch.randn(GRAPH.num_nodes, 5, dtype=torch.float64, requires_grad=True)
    call, wanted = _arguments(module, x, gradients=[0, 1])
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(relational_forward.overload, (*call, wanted), test_utils=checks)


def test_the_reference_backend_has_gradients_in_operators_too():
    module = _module(everything)
    generator = torch.Generator().manual_seed(0)
    features = [
        torch.randn(rows, *width, generator=generator, dtype=torch.float64)
        for rows, width in ((GRAPH.num_nodes, (5,)), (GRAPH.num_edges, ()), (GRAPH.num_edges, (5,)))
    ]
    found = []
    for backend in ("reference", "cpp"):
        module.function.backend = backend
        tensors = dict(zip(module.function.feature_names, features, strict=True))
        tensors |= dict(module.named_parameters())
        out = record_call(module.function, GRAPH, tensors, False, None)
        found.append([out, *torch.autograd.grad(out.sum(), list(module.parameters()))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_second_derivative_is_refused_by_the_operator():
    module = _module()
    x = torch.randn(GRAPH.num_nodes, 5, dtype=torch.float64, requires_grad=True)
    out = record_call(module.function, GRAPH, {"x": x, "weight": module.weight}, False, None)
    (gradient,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(SecondDerivativeError):
        gradient.sum().backward()


def test_a_layer_is_found_by_name_also_when_it_is_gone():
    module = _module()
    name, text = module.function.name, module.function.program.text()
    assert find_function(name) is module.function
    del module
    gc.collect()
    assert find_function(name).program.text() == text
    with pytest.raises(LayerArgumentError, match="which this process has not made"):
        find_function("convolve_0123456789abcdef:0")


def test_a_missing_argument_is_named():
    with pytest.raises(LayerArgumentError, match="needs `weight`"):
        record_call(_module().function, GRAPH, {"x": torch.ones(9, 5)}, False, None)
