"""DGL's layers before and after `accelerate`: outputs, gradients, and what is kept of graphs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.relational import (
    DGLGATConv,
    DGLGraphConv,
    DGLHeteroGraphConv,
    DGLSAGEConv,
    accelerate,
)
from tests.relational import dgl_stand_ins as dgl
from tests.relational.layers.comparing import use_backend
from tests.relational.layers.parity import draw

GENERATOR = torch.Generator().manual_seed(4)
ENDS = torch.randint(12, (2, 60), generator=GENERATOR)
WEIGHT = torch.rand(60, generator=GENERATOR, dtype=torch.float64)
X, OWN = draw(12, 5), draw(7, 6)
APART = torch.stack([ENDS[0], ENDS[1] % 7])
GRAPHS = {
    "graph": (dgl.PlainGraph(ENDS, 12), X),
    "block": (dgl.PlainGraph(torch.stack([ENDS[0], ENDS[1] % 6]), 12, 6), X),
    "apart": (dgl.RelationGraph(APART, 12, 7), (X, OWN)),
}


def _run(
    module: Any, leaves: list[torch.Tensor], *inputs: Any, **options: Any
) -> list[torch.Tensor]:
    """Outputs, then gradients of features and parameters."""
    out = module(*inputs, **options)
    outputs = (
        [*out.values()] if isinstance(out, dict) else [*out] if isinstance(out, tuple) else [out]
    )
    loss = sum((each * torch.arange(each.numel()).view_as(each).cos()).sum() for each in outputs)
    wanted = [*leaves, *module.parameters()]
    return outputs + list(torch.autograd.grad(loss, wanted, materialize_grads=True))


def _name(given: Any) -> str:
    """The same in every process, which what prints with its address is not."""
    if isinstance(given, dict):
        return " ".join(f"{key}={_name(each)}" for key, each in given.items())
    if isinstance(given, tuple):
        return " ".join(map(_name, given))
    return getattr(given, "__name__", str(given))


def _find_leaves(given: Any) -> list[torch.Tensor]:
    return [given] if isinstance(given, torch.Tensor) else [*given]


def _require_same(module: Any, swaps: int, graph: Any, feat: Any, **options: Any) -> None:
    module = module.double()
    with torch.no_grad():
        for each in module.parameters():
            each.copy_(torch.randn(each.shape, generator=GENERATOR) * 0.5)
    leaves = [
        each.requires_grad_()
        for each in (feat.values() if isinstance(feat, dict) else _find_leaves(feat))
    ]
    before, keys, kind = (
        _run(module, leaves, graph, feat, **options),
        [*module.state_dict()],
        type(module),
    )
    report = accelerate(module)
    assert len(report.swapped) == swaps, report
    for each in module.modules():
        use_backend(each, "reference")
    for after in (_run(module, leaves, graph, feat, **options) for _ in range(2)):
        for got, expected in zip(after, before, strict=True):
            torch.testing.assert_close(got, expected)
    assert [*module.state_dict()] == keys
    copied = copy.deepcopy(module)
    torch.testing.assert_close(_run(copied, leaves, graph, feat, **options)[0], before[0])
    report.revert()
    assert type(module) is kind
    torch.testing.assert_close(_run(module, leaves, graph, feat, **options), before)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weighted"])
@pytest.mark.parametrize("form", GRAPHS)
@pytest.mark.parametrize(
    "options",
    [
        ("mean", {}),
        ("pool", {"bias": False}),
        ("mean", {"activation": torch.tanh, "norm": torch.exp}),
    ],
    ids=_name,
)
def test_sage(options: Any, form: str, weight: torch.Tensor | None) -> None:
    graph, feat = GRAPHS[form]
    aggregator, more = options
    widths = (5, 6) if form == "apart" else 5
    _require_same(dgl.SAGEConv(widths, 4, aggregator, **more), 1, graph, feat, edge_weight=weight)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weighted"])
@pytest.mark.parametrize("form", GRAPHS)
@pytest.mark.parametrize("norm", ["both", "right", "left", "none"])
def test_graph_conv(norm: str, form: str, weight: torch.Tensor | None) -> None:
    graph, feat = GRAPHS[form]
    layer = dgl.GraphConv(
        5, 4, norm, bias=norm != "left", activation=torch.tanh, allow_zero_in_degree=True
    )
    feat = (X, draw(7, 5)) if form == "apart" else feat
    _require_same(layer, 1, graph, feat, edge_weight=weight)


@pytest.mark.parametrize("form", GRAPHS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"residual": True, "bias": False},
        {"residual": True, "negative_slope": 0.4},
        {"activation": torch.tanh},
    ],
    ids=_name,
)
def test_gat(options: Any, form: str) -> None:
    graph, feat = GRAPHS[form]
    widths = (5, 6) if form == "apart" else 5
    options = {"allow_zero_in_degree": True, **options}
    _require_same(dgl.GATConv(widths, 3, 2, **options), 1, graph, feat)
    _require_same(
        dgl.GATConv(widths, 3, 2, **options), 1, graph, feat, edge_weight=WEIGHT, get_attention=True
    )


def test_a_residual_of_the_results_width_is_added_as_it_is() -> None:
    graph, _ = GRAPHS["graph"]
    layer = dgl.GATConv(6, 3, 2, residual=True, allow_zero_in_degree=True)
    _require_same(layer, 1, graph, draw(12, 6))


def test_dropout_follows_its_module() -> None:
    layer = DGLGATConv(5, 3, 2, attn_drop=0.5, allow_zero_in_degree=True)
    x = torch.randn(12, 5)
    assert not torch.equal(layer(ENDS, x), layer(ENDS, x))
    layer.attn_drop.p = 0.0
    assert torch.equal(layer(ENDS, x), layer(ENDS, x))


LONELY = torch.tensor([[0, 1], [1, 1]])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: DGLSAGEConv(4, 4, "lstm"), "aggregator_type is 'lstm'"),
        (lambda: DGLGraphConv(4, 4, "top"), "norm is 'top'"),
        (lambda: DGLHeteroGraphConv({}, "median"), "aggregate is 'median'"),
        (lambda: DGLGraphConv(4, 4)(LONELY, torch.randn(2, 4)), "nodes without incoming edges"),
        (lambda: DGLGATConv(4, 4, 1)(LONELY, torch.randn(2, 4)), "nodes without incoming edges"),
        (
            lambda: DGLGraphConv(4, 4)(LONELY, torch.randn(2, 4), torch.randn(4, 4)),
            "a weight was given to a layer that has its own",
        ),
        (lambda: DGLSAGEConv(4, 4, "mean")(None, torch.randn(2, 4)), "the graph is a NoneType"),
        (
            lambda: DGLSAGEConv(4, 4, "mean")(LONELY, torch.randn(2, 4), torch.ones(3)),
            "Give one number per edge",
        ),
    ],
)
def test_what_does_not_fit_is_named(call: Any, told: str) -> None:
    with pytest.raises(LayerArgumentError, match=told):
        call()


BUYS, SOLD, KNOWS = ("user", "buys", "item"), ("item", "sold", "user"), ("user", "knows", "user")
COUNTS = {"user": 8, "item": 6}


def _draw_edges(relation: tuple[str, str, str], targets: dict[str, int]) -> torch.Tensor:
    limits = COUNTS[relation[0]], targets[relation[2]]
    return torch.stack([torch.randint(each, (20,), generator=GENERATOR) for each in limits])


def _make_hetero_graph(targets: dict[str, int] | None = None) -> dgl.PlainHeteroGraph:
    edges = {each: _draw_edges(each, targets or COUNTS) for each in (BUYS, SOLD, KNOWS)}
    edges[SOLD] = edges[SOLD][:, :0]  # nothing was sold
    return dgl.PlainHeteroGraph(edges, COUNTS, targets)


def _make_hetero(aggregate: str) -> dgl.HeteroGraphConv:
    mods = {
        "buys": dgl.SAGEConv((5, 6), 4, "mean"),
        "sold": dgl.SAGEConv((6, 5), 4, "pool"),
        KNOWS: dgl.GraphConv(5, 4),
    }
    return dgl.HeteroGraphConv(mods, aggregate)


@pytest.mark.parametrize("aggregate", ["sum", "mean"])
@pytest.mark.parametrize("targets", [None, {"user": 5, "item": 3}], ids=["graph", "block"])
def test_many_relations(aggregate: str, targets: dict[str, int] | None) -> None:
    graph = _make_hetero_graph(targets)
    x = {"user": draw(8, 5), "item": draw(6, 6)}
    weights = {"buys": {"edge_weight": torch.rand(20, dtype=torch.float64)}}
    _require_same(_make_hetero(aggregate), 4, graph, x)
    _require_same(_make_hetero(aggregate), 4, graph, x, mod_kwargs=weights)
    # Asked once for a relation, whatever the number of calls and of layers.
    assert sorted(graph.asked) == sorted([BUYS, SOLD, KNOWS])
    pair = x, {name: rows[: graph.num_dst_nodes(name)] for name, rows in x.items()}
    layer = _make_hetero(aggregate).double()
    expected = layer(graph, pair)
    accelerate(layer)
    torch.testing.assert_close(layer(graph, pair), expected)


def test_a_layer_that_is_looked_at_gets_the_relations_graph() -> None:
    graph, layer = _make_hetero_graph(), _make_hetero("sum")
    x = {"user": torch.randn(8, 5), "item": torch.randn(6, 6)}
    expected = layer(graph, x)
    accelerate(layer)
    seen = []
    hook = layer.mods["buys"].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    torch.testing.assert_close(layer(graph, x), expected)
    hook.remove()
    assert isinstance(seen[0], dgl.RelationGraph)


@pytest.mark.parametrize("aggregate", ["sum", "mean", "max", "min", "stack"])
def test_ways_to_aggregate(aggregate: str) -> None:
    graph = _make_hetero_graph()
    x = {"user": torch.randn(8, 5), "item": torch.randn(6, 6)}
    mods = {
        SOLD: DGLGraphConv(6, 4),
        "knows": DGLGraphConv(5, 4),
        "buys": DGLGraphConv(5, 4),
    }
    out = DGLHeteroGraphConv(mods, aggregate)(graph, x)
    of_users = [
        mods[name](graph[each], (x[each[0]], x["user"]))
        for name, each in ((SOLD, SOLD), ("knows", KNOWS))
    ]
    stacked = torch.stack(of_users, 1)
    expected = {
        "sum": lambda: stacked.sum(1),
        "mean": lambda: stacked.mean(1),
        "max": lambda: stacked.amax(1),
        "min": lambda: stacked.amin(1),
        "stack": lambda: stacked,
    }[aggregate]()
    torch.testing.assert_close(out["user"], expected)
    assert set(out) == {"user", "item"}
