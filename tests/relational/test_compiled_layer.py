"""Compiled layers as modules: numbers, gradients, modes, dtypes, and bad input."""

import copy
import pickle

import pytest
import torch

from shorthaul.errors import LayerArgumentError, SecondDerivativeError
from shorthaul.relational import EdgeFeature, NodeFeature, layer
from shorthaul.relational.backends import reference
from shorthaul.relational.runtime.arguments import prepare_arguments
from shorthaul.relational.topology.topology import Topology
from tests.relational.programs import (
    SIZES,
    attend,
    convolve,
    drop,
    everything,
    sample_graph,
    widths_of,
)

GRAPH = sample_graph(nodes=30, edges=400)


def _make(definition, dtype=torch.float64):
    options = {name: SIZES[name] for name in definition.options}
    made = definition(relations=16, node_types=2, **widths_of(definition, **options)).to(dtype)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return made


def _features(made, dtype=torch.float64):
    generator = torch.Generator().manual_seed(4)
    rows = {"x": GRAPH.num_nodes, "strength": GRAPH.num_edges, "detail": GRAPH.num_edges}
    return [
        torch.randn(rows[name], *made.program[name].shape, generator=generator, dtype=torch.float64)
        .to(dtype)
        .requires_grad_()
        for name in made.function.feature_names
    ]


@pytest.mark.parametrize("definition", [convolve, attend, everything], ids=lambda d: d.__name__)
def test_numbers_and_gradients_are_the_references(definition):
    made = _make(definition)
    features = _features(made)
    tensors = [*features, *made.parameters()]
    out = made(GRAPH, *features)
    arrived = torch.randn_like(out)
    got = torch.autograd.grad(out, tensors, arrived)
    made.function.backend = "reference"
    plain = made(GRAPH, *features)
    expected = torch.autograd.grad(plain, tensors, arrived)
    torch.testing.assert_close(out, plain)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_results_are_the_same_for_any_number_of_threads():
    made = _make(attend, torch.float32)
    features = _features(made, torch.float32)
    found = []
    for threads in (1, 2):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            out = made(GRAPH, *features)
            gradients = torch.autograd.grad(out.square().sum(), [*features, *made.parameters()])
        finally:
            torch.set_num_threads(before)
        found.append([out, *gradients])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_gradients_pass_gradcheck():
    made = _make(convolve)
    (x,) = _features(made)
    assert torch.autograd.gradcheck(lambda x: made(GRAPH, x), (x,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_add_up_in_thirty_two(dtype):
    made = _make(convolve, dtype)
    (x,) = _features(made, dtype)
    out = made(GRAPH, x)
    wide = copy.deepcopy(made).float()
    expected = wide(GRAPH, x.detach().float())
    assert out.dtype is dtype
    torch.testing.assert_close(out.float(), expected, rtol=0.03, atol=0.03)
    out.sum().backward()
    assert x.grad.dtype is dtype


def test_dropout_is_off_in_evaluation_and_seeded_in_training():
    made = drop(width=5)
    x = torch.ones(GRAPH.num_nodes, 5, requires_grad=True)
    made.eval()
    whole = made(GRAPH, x)
    made.train()
    torch.manual_seed(1)
    first = made(GRAPH, x)
    (gradient,) = torch.autograd.grad(first.sum(), x)
    torch.manual_seed(1)
    again = made(GRAPH, x)
    assert torch.equal(first, again)
    assert not torch.equal(first, whole)
    # The same mask comes back in the backward pass: what was kept counts twice, the rest not at all.
    torch.testing.assert_close(gradient.sum(), first.sum())
    assert set((first % 2).unique().tolist()) == {0.0}


def test_no_gradient_compiles_no_gradient():
    made = _make(convolve, torch.float32)
    with torch.no_grad():
        made(GRAPH, torch.randn(GRAPH.num_nodes, 5))
    (only,) = made.function.compilations.values()
    assert only.plan.backward == ()


def test_one_compilation_serves_every_graph():
    made = _make(convolve, torch.float32)
    for edges in (50, 60, 70):
        graph = sample_graph(nodes=20, edges=edges)
        made(graph, torch.randn(20, 5))
    assert len(made.function.compilations) == 1


def test_state_and_copies():
    made = _make(attend)
    other = _make(attend)
    other.load_state_dict(made.state_dict())
    (x,) = _features(made)
    assert torch.equal(made(GRAPH, x), other(GRAPH, x))
    assert torch.equal(copy.deepcopy(made)(GRAPH, x), made(GRAPH, x))
    assert list(made.state_dict()) == ["weight", "query", "key", "bias"]


def test_a_second_derivative_is_refused_not_wrong():
    made = _make(convolve)
    (x,) = _features(made)
    (gradient,) = torch.autograd.grad(made(GRAPH, x).square().sum(), x, create_graph=True)
    with pytest.raises(SecondDerivativeError, match="reference"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x[:-1], r"`x` has shape \(29, 5\), expected \(30, 5\): 30 node rows of \(5,\)"),
        (lambda x: x[:, :4], r"`x` has shape \(30, 4\)"),
        (lambda x: x.float(), "float64 like the others|float32 like the others"),
        (lambda x: x.long(), "int64"),
        (lambda x: None, "needs `x`"),
        (lambda x: x.to("meta"), "is on meta"),
    ],
)
def test_bad_input_is_named(change, said):
    made = _make(convolve)
    (x,) = _features(made)
    with pytest.raises(LayerArgumentError, match=said):
        made(GRAPH, change(x.detach()))


def test_wrong_number_of_relations_is_named():
    made = convolve(relations=3, **widths_of(convolve))
    with pytest.raises(
        LayerArgumentError, match=r"`weight` has shape \(3, 5, 3\), expected \(16, 5, 3\)"
    ):
        made(GRAPH, torch.randn(30, 5))


def test_nan_stays_where_it_belongs():
    made = _make(convolve)
    (x,) = (each.detach() for each in _features(made))
    x[3] = float("nan")
    got = made(GRAPH, x)
    topology = Topology.of(GRAPH)
    tensors = {"x": x, "weight": made.weight}
    expected = reference.run(
        made.program, topology, prepare_arguments(made.program, topology, tensors)
    )
    assert torch.equal(got.isnan(), expected["out"].isnan())


def test_large_logits_do_not_overflow():
    made = _make(attend, torch.float32)
    (x,) = (each.detach() for each in _features(made, torch.float32))
    assert bool(made(GRAPH, x * 1e4).isfinite().all())


def test_explain_before_and_after_the_first_call():
    made = _make(convolve, torch.float32)
    assert "not compiled yet" in made.explain()
    made(GRAPH, torch.randn(30, 5))
    assert "== generated source ==" in made.explain()
    assert "convolve, relations=16" in repr(made)


def test_parameters_survive_pickling():
    made = _make(convolve)
    state = pickle.loads(pickle.dumps(made.state_dict()))
    assert torch.equal(state["weight"], made.weight)


@layer
def weigh_edges(g, x: NodeFeature("width"), strength: EdgeFeature()):
    for e in g.edges():
        e.value = e.source.x * e.strength.reshape(1)
    return e.value


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_values_of_edges_come_in_the_order_of_the_edges(backend):
    made = weigh_edges(width=5)
    made.function.backend = backend
    tensors = _features(_make(everything))[:2]
    out = made(GRAPH, *tensors)
    x, strength = tensors
    expected = x[GRAPH.source.long()] * strength.unsqueeze(1)
    torch.testing.assert_close(out, expected)
    arrived = torch.randn_like(out)
    got = torch.autograd.grad(out, tensors, arrived)
    for one, other in zip(got, torch.autograd.grad(expected, tensors, arrived), strict=True):
        torch.testing.assert_close(one, other)
