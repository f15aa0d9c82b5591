"""PyG's HAN through its own weights: node-level and semantic attention, outputs and gradients."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import RelationalGraph
from shorthaul.relational import HANConv

pyg = pytest.importorskip("torch_geometric.nn")

NODES = {"a": 9, "b": 14, "c": 4}
TYPES = (list(NODES), [("a", "x", "b"), ("b", "y", "a"), ("b", "z", "b"), ("c", "w", "b")])
WIDTHS = {"a": 6, "b": 8, "c": 5}


def _inputs():
    generator = torch.Generator().manual_seed(5)
    x = {
        name: torch.randn(count, WIDTHS[name], dtype=torch.float64, generator=generator)
        for name, count in NODES.items()
    }
    edges = {
        each: torch.stack(
            [torch.randint(NODES[each[end]], (20,), generator=generator) for end in (0, 2)]
        )
        for each in TYPES[1]
    }
    return x, edges


def _pair(heads=2, **options):
    ours, theirs = (
        kind(WIDTHS, 8, TYPES, heads, **options).double() for kind in (HANConv, pyg.HANConv)
    )
    with torch.no_grad():
        for number, parameter in enumerate(theirs.parameters()):
            generator = torch.Generator().manual_seed(number)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    ours.load_state_dict(theirs.state_dict())
    ours.function.backend = "reference"
    return ours, theirs


def _loss(out):
    return sum((value * (number + 1)).square().sum() for number, value in enumerate(out.values()))


@pytest.mark.parametrize(
    ("options", "backend"),
    [({"heads": 1}, "reference"), ({"heads": 4, "negative_slope": 0.1}, "reference"), ({}, "auto")],
    ids=str,
)
def test_same_as_pyg(options, backend):
    ours, theirs = _pair(**options)
    ours.function.backend = backend
    x, edges = _inputs()
    for each in x.values():
        each.requires_grad_()
    (out, shares), (expected, wanted) = (layer(x, edges, True) for layer in (ours, theirs))
    assert out["c"] is expected["c"] is shares["c"] is None
    reached = ("a", "b")
    for name in reached:
        torch.testing.assert_close(out[name], expected[name])
        torch.testing.assert_close(shares[name], wanted[name])
    tensors = [*x.values(), *ours.parameters()]
    others = dict(theirs.named_parameters())
    same = [*x.values(), *(others[name] for name, _ in ours.named_parameters())]
    got = torch.autograd.grad(_loss({name: out[name] for name in reached}), tensors)
    plain = torch.autograd.grad(_loss({name: expected[name] for name in reached}), same)
    for one, other in zip(got, plain, strict=True):
        torch.testing.assert_close(one, other)


def test_only_given_relations_take_part():
    ours, theirs = _pair()
    x, edges = _inputs()
    some = {each: edges[each] for each in (TYPES[1][3], TYPES[1][0])}  # in another order
    out, expected = ours(x, some), theirs(x, some)
    assert out["a"] is expected["a"] is None
    torch.testing.assert_close(out["b"], expected["b"])
    some[TYPES[1][2]] = torch.empty(2, 0, dtype=torch.int64)  # without edges it takes part
    torch.testing.assert_close(ours(x, some)["b"], theirs(x, some)["b"])
    assert ours(x, {})["b"] is None


def test_a_type_without_nodes():
    ours, theirs = _pair()
    x, edges = _inputs()
    x["a"] = x["a"][:0]
    edges = {("b", "y", "a"): torch.empty(2, 0, dtype=torch.int64)}
    out, shares = ours(x, edges, return_semantic_attention_weights=True)
    assert out["a"].shape == theirs(x, edges)["a"].shape == (0, 8)
    assert shares["a"] is None


def test_other_forms_of_graphs():
    ours, _ = _pair()
    x, edges = _inputs()
    expected = ours(x, edges)["b"]
    graph = RelationalGraph.from_typed_edges(edges, NODES)
    assert torch.equal(ours(x, graph)["b"], expected)
    data = pytest.importorskip("torch_geometric.data").HeteroData()
    for name, value in x.items():
        data[name].x = value
    for each, value in edges.items():
        data[each].edge_index = value
    assert torch.equal(ours(data)["b"], expected)


def test_traced_without_a_break():
    ours, _ = _pair()
    x, edges = _inputs()
    traced = torch.compile(ours, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(traced(x, edges)["b"], ours(x, edges)["b"])
    graph = RelationalGraph.from_typed_edges(edges, NODES)
    torch.testing.assert_close(traced(x, graph)["b"], ours(x, edges)["b"])


def test_dropout_only_in_training():
    ours, theirs = _pair(dropout=0.5)
    x, edges = _inputs()
    torch.testing.assert_close(ours.eval()(x, edges)["b"], theirs.eval()(x, edges)["b"])
    ours.train()
    torch.manual_seed(1)
    first = ours(x, edges)["b"]
    torch.manual_seed(1)
    assert torch.equal(ours(x, edges)["b"], first)
    assert not torch.equal(ours(x, edges)["b"], first)


def test_names_and_bad_input():
    ours, theirs = _pair()
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert "8, heads=2" in repr(ours)
    assert "han" in ours.explain()
    x, edges = _inputs()
    with pytest.raises(LayerArgumentError, match="heads"):
        HANConv(8, 8, TYPES, heads=3)
    with pytest.raises(LayerArgumentError, match=r"relation .*'q'"):
        ours(x, {("a", "q", "b"): edges["a", "x", "b"]})


HEADS, DIM = 2, 4
ONE_RELATION = (["a", "b"], [("a", "x", "b")])


def _plain_queries(layer, x, edges, arrived, dtype):
    """The gradient of `lin_dst` by plain PyTorch, and the sum of the sizes of what is added up in it.

    It is the sum over edges of share * (gradient - mean gradient of the target) * slope * value. Were
    all slopes of a target's edges equal, its part would be zero, because a softmax does not see what is
    added to all logits: then nothing is left but rounding, of whichever order of sums.
    """
    source, target = edges
    values = {
        name: torch.nn.functional.linear(
            each.to(dtype), layer.proj[name].weight.to(dtype), layer.proj[name].bias.to(dtype)
        ).view(-1, HEADS, DIM)
        for name, each in x.items()
    }
    lin_src, lin_dst = (
        each["a__x__b"].detach().to(dtype).requires_grad_()
        for each in (layer.lin_src, layer.lin_dst)
    )
    heard = (values["a"] * lin_src).sum(-1)[source]
    asked = (values["b"] * lin_dst).sum(-1)[target]
    logit = torch.nn.functional.leaky_relu(heard + asked, 0.2)
    count = len(x["b"])
    order = torch.argsort(target, stable=True)
    by_target = torch.cat([logit[target == each].softmax(0) for each in range(count)])
    shares = by_target[torch.argsort(order)]
    weighed = shares[..., None] * values["a"][source]
    out = torch.zeros(count, HEADS, DIM, dtype=dtype).index_add(0, target, weighed)
    loss = (out.flatten(1).relu() * arrived.to(dtype)).sum()
    gradient, of_shares = torch.autograd.grad(loss, (lin_dst, shares))
    means = torch.zeros(count, HEADS, dtype=dtype).index_add(0, target, shares * of_shares)
    slope = torch.where(logit > 0, 1.0, 0.2)
    terms = shares * slope * (of_shares.abs() + means[target].abs())
    return gradient[0], (terms[..., None] * values["b"][target].abs()).sum(0).detach()


def test_the_gradient_of_queries_is_as_near_as_its_condition_permits():
    """Nodes of one channel: sums cancel by up to all of their places, in every implementation."""
    layer = HANConv({"a": 3, "b": 1}, HEADS * DIM, ONE_RELATION, HEADS)
    epsilon = torch.finfo(torch.float32).eps
    errors, conditions = [], []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        x = {
            name: torch.randn(count, width, generator=generator)
            for name, count, width in (("a", 30, 3), ("b", 20, 1))
        }
        edges = torch.stack([torch.randint(each, (200,), generator=generator) for each in (30, 20)])
        arrived = torch.randn(20, HEADS * DIM, generator=generator)
        out = layer(x, {ONE_RELATION[1][0]: edges})["b"]
        (got,) = torch.autograd.grad((out * arrived).sum(), [layer.lin_dst["a__x__b"]])
        exact, mass = _plain_queries(layer, x, edges, arrived, torch.float64)
        plain, _ = _plain_queries(layer, x, edges, arrived, torch.float32)
        both = torch.stack([got[0], plain]).double()
        errors.append((both - exact).abs() / mass)
        conditions.append(mass / exact.abs())
    sizes = torch.stack(errors) / epsilon  # in places of what is added up
    assert sizes[:, 0].max() <= 4
    ours, theirs = sizes.square().mean((0, 2, 3)).sqrt()
    assert ours <= 1.5 * theirs
    worst = torch.stack(conditions)
    assert worst.max() > 1 / epsilon  # no place of a float32 is right there, nor could be
    assert worst.median() < 1000
