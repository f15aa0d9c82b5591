"""What autograd records: outputs, gradients, and a refusal where somebody differentiates twice."""

import pytest
import torch

from shorthaul.errors import SecondDerivativeError
from shorthaul.relational import NodeFeature, Weight, layer, linear, positive
from shorthaul.relational.runtime.autograd import refuse_second
from tests.relational.programs import convolve, sample_graph, widths_of

GRAPH = sample_graph()


def _run():
    module = convolve(relations=16, node_types=2, **widths_of(convolve)).double()
    x = torch.randn(GRAPH.num_nodes, 5, dtype=torch.float64, requires_grad=True)
    return module, x


def test_gradients_can_be_had_twice_from_a_retained_graph():
    module, x = _run()
    loss = module(GRAPH, x).square().sum()
    first = torch.autograd.grad(loss, [x, module.weight], retain_graph=True)
    second = torch.autograd.grad(loss, [x, module.weight])
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_create_graph_is_allowed_while_nobody_uses_it():
    module, x = _run()
    (plain,) = torch.autograd.grad(module(GRAPH, x).sum(), x)
    (kept,) = torch.autograd.grad(module(GRAPH, x).sum(), x, create_graph=True)
    assert torch.equal(plain, kept)
    with pytest.raises(SecondDerivativeError, match="`convolve`"):
        kept.sum().backward()


def test_gradients_that_nothing_reaches_stay_as_they_are():
    made = [torch.ones(2), None]
    assert refuse_second("layer", made, (torch.ones(1),)) is made


def _signed(rows, width):
    """Numbers behind a view that turns their sign."""
    value = torch.randn(rows, width, dtype=torch.complex128).conj().imag
    assert value.is_neg()
    return value


def test_a_view_with_a_sign_is_read_by_its_value():
    module, _ = _run()
    x = _signed(GRAPH.num_nodes, 5)
    assert torch.equal(module(GRAPH, x), module(GRAPH, x.resolve_neg()))


def test_a_gradient_with_a_sign_is_read_by_its_value():
    module, x = _run()
    out = module(GRAPH, x)
    arrived = _signed(*out.shape)
    got = torch.autograd.grad(out, [x, module.weight], arrived, retain_graph=True)
    expected = torch.autograd.grad(out, [x, module.weight], arrived.resolve_neg())
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


@pytest.mark.parametrize("backend", ["cpp", "reference"])
def test_what_no_result_needs_has_a_gradient_of_zero_also_where_it_is_infinite(backend):
    @layer
    def copied(g, x: NodeFeature(4), unused: NodeFeature(4), weight: Weight(4, 4)):
        for n in g.nodes():
            n.out = n.x * 2.0
            n.other = positive(linear(n.unused, weight))
        return n.out, n.other

    module = copied()
    module.function.backend = backend
    torch.nn.init.constant_(module.weight, float("inf"))
    unused = torch.full((GRAPH.num_nodes, 4), float("nan"), requires_grad=True)
    out, _ = module(GRAPH, torch.ones(GRAPH.num_nodes, 4, requires_grad=True), unused)
    inputs = [unused, module.weight]
    made = torch.autograd.grad(out.sum(), inputs, materialize_grads=True)
    assert all(torch.equal(each, torch.zeros_like(each)) for each in made)
