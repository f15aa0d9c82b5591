"""What autograd records: outputs, gradients, and a refusal where somebody differentiates twice."""

import pytest
import torch

from shorthaul.errors import SecondDerivativeError
from shorthaul.relational.recorded_run import refuse_second
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
