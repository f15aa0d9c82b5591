"""Relational layers: the ready ones, one of a user's own, and PyG's that were accelerated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.relational import NodeFeature, Weight, layer, leaky_relu, linear, softmax
from tests.matrix.graph_operations import EDGES, NODES, RELATIONS, edges
from tests.matrix.operation import Operation, Run, Tensors, as_leaf, random_tensor, with_gradients

WIDTH, OUT = 6, 4
TYPES = (["left", "right"], [("left", "to", "right"), ("right", "back", "left")])


@layer
def attention(
    g,
    x: NodeFeature("width"),
    weight: Weight("relation", "width", "out"),
    query: Weight("out", 1),
    key: Weight("out", 1),
):
    """A user's own layer, as in the documentation."""
    for e in g.edges():
        e.value = linear(e.source.x, weight[e.relation])
        asked = linear(linear(e.target.x, weight[e.relation]), query)
        e.alpha = softmax(leaky_relu(asked + linear(e.value, key)))
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += e.alpha * e.value
    return n.out


def _inputs() -> dict[str, torch.Tensor]:
    return {**edges(), "x": random_tensor(NODES, WIDTH), "detail": random_tensor(EDGES, 3)}


def fill(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The same parameters, whatever initialized them."""
    module = module.to(dtype)
    with torch.no_grad():
        for number, each in enumerate(module.parameters()):
            each.copy_(random_tensor(*each.shape, seed=number) * 0.3)
    return module


def _run(module: nn.Module, given: Tensors, call: Callable[[torch.Tensor], Any]) -> Tensors:
    module.zero_grad()
    x = as_leaf(given["x"])
    out = call(x)
    if isinstance(out, Mapping):
        out = tuple(out.values())
    if isinstance(out, tuple):
        out = torch.cat([each.reshape(-1) for each in out])
    leaves = {name: each for name, each in module.named_parameters() if each.requires_grad}
    return with_gradients(out, x=x, **leaves)


def _homogeneous(
    make: Callable[[], nn.Module], *, has_types: bool, has_detail: bool = False
) -> Callable[[Tensors, Path], Run]:
    def prepare(given: Tensors, _: Path) -> Run:
        module = fill(make(), given["x"].dtype)

        def run() -> Tensors:
            edge_index = torch.stack([given["source"], given["target"]])
            more = [given["relation"]] if has_types else []
            named = {"edge_attr": given["detail"]} if has_detail else {}
            return _run(module, given, lambda x: module(x, edge_index, *more, **named))

        return run

    return prepare


def _called(
    make: Callable[[], nn.Module], call: Callable[[nn.Module, Tensors, torch.Tensor], Any]
) -> Callable[[Tensors, Path], Run]:
    """A layer whose arguments come in an order of their own."""

    def prepare(given: Tensors, _: Path) -> Run:
        module = fill(make(), given["x"].dtype)
        return lambda: _run(module, given, lambda x: call(module, given, x))

    return prepare


def _ends(given: Tensors) -> torch.Tensor:
    return torch.stack([given["source"], given["target"]])


def _compose(module: nn.Module, given: Tensors, x: torch.Tensor) -> Any:
    embedding = random_tensor(4, WIDTH).to(x.dtype)
    return module(x, _ends(given), given["relation"], embedding)


def _transform(module: nn.Module, given: Tensors, x: torch.Tensor) -> Any:
    types = torch.arange(NODES, device="cpu") % 2
    return module(_ends(given), x, types, given["relation"])


def _own(given: Tensors, _: Path) -> Run:
    made = fill(attention(relations=RELATIONS, width=WIDTH, out=OUT), given["x"].dtype)

    def run() -> Tensors:
        graph = sh.RelationalGraph.from_edges(
            given["source"], given["target"], given["relation"], num_nodes=NODES
        )
        return _run(made, given, lambda x: made(graph, x))

    return run


def _plain_own(given: Tensors) -> Tensors:
    made = fill(attention(relations=RELATIONS, width=WIDTH, out=OUT), given["x"].dtype)
    source, target, relation = (given[name].long() for name in ("source", "target", "relation"))

    def call(x: torch.Tensor) -> torch.Tensor:
        value = torch.einsum("ew,ewo->eo", x[source], made.weight[relation])
        asked = torch.einsum("ew,ewo->eo", x[target], made.weight[relation]) @ made.query
        score = nn.functional.leaky_relu(asked + value @ made.key, 0.2)
        share = score.exp()
        total = torch.zeros(NODES, 1, dtype=x.dtype).index_add(0, target, share)
        return torch.zeros(NODES, OUT, dtype=x.dtype).index_add(
            0, target, share / total[target] * value
        )

    return _run(made, given, call)


def _typed(make: Callable[[], nn.Module]) -> Callable[[Tensors, Path], Run]:
    """Two halves of the nodes as two types, with edges between them."""
    half = NODES // 2

    def prepare(given: Tensors, _: Path) -> Run:
        module = fill(make(), given["x"].dtype)

        def run() -> Tensors:
            source, target = (given[name].long() % half for name in ("source", "target"))
            ends = {
                TYPES[1][0]: torch.stack([source[:60], target[:60]]),
                TYPES[1][1]: torch.stack([source[60:], target[60:]]),
            }
            return _run(
                module, given, lambda x: module({"left": x[:half], "right": x[half:]}, ends)
            )

        return run

    return prepare


def _pyg_model(dtype: torch.dtype) -> Any:
    # Here, and not above: importing it takes seconds. It warns of what it will not do much longer.
    pyg = pytest.importorskip("torch_geometric.nn", reason="PyG is not installed")
    module = nn.Sequential()
    module.add_module("conv", pyg.RGCNConv(WIDTH, OUT, RELATIONS))
    return fill(module, dtype)


def _call_pyg_model(module: Any, given: Tensors) -> Tensors:
    edge_index = torch.stack([given["source"], given["target"]]).long()
    relation = given["relation"].long()
    return _run(module, given, lambda x: module.conv(x, edge_index, relation))


def _accelerated(given: Tensors, _: Path) -> Run:
    module = _pyg_model(given["x"].dtype)
    assert len(sh.relational.accelerate(module).swapped) == 1
    return lambda: _call_pyg_model(module, given)


def _plain_accelerated(given: Tensors) -> Tensors:
    return _call_pyg_model(_pyg_model(given["x"].dtype), given)


def _peer(name: str, *arguments: Any, **options: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(sh.relational, name)(*arguments, **options)


OPERATIONS = (
    Operation("a layer of one's own", _inputs, _own, _plain_own, tolerance=1e-4),
    Operation(
        "RGCNConv",
        _inputs,
        _homogeneous(_peer("RGCNConv", WIDTH, OUT, RELATIONS), has_types=True),
        is_heavy=True,
        tolerance=1e-4,
    ),
    Operation(
        "RGATConv",
        _inputs,
        _homogeneous(
            _peer("RGATConv", WIDTH, OUT, RELATIONS, heads=2, edge_dim=3),
            has_types=True,
            has_detail=True,
        ),
        is_heavy=True,
        tolerance=1e-4,
    ),
    Operation(
        "GATv2Conv",
        _inputs,
        _homogeneous(_peer("GATv2Conv", WIDTH, OUT, heads=2), has_types=False),
        is_heavy=True,
        tolerance=1e-4,
    ),
    Operation(
        "SAGEConv",
        _inputs,
        _homogeneous(_peer("SAGEConv", WIDTH, OUT), has_types=False),
        is_heavy=True,
        tolerance=1e-4,
    ),
    Operation(
        "HGTConv",
        _inputs,
        _typed(_peer("HGTConv", WIDTH, OUT, TYPES, heads=2)),
        is_heavy=True,
        tolerance=1e-4,
    ),
    Operation(
        "HANConv",
        _inputs,
        _typed(_peer("HANConv", WIDTH, OUT, TYPES, heads=2)),
        is_heavy=True,
        tolerance=1e-4,
    ),
    *(
        Operation(
            name,
            _inputs,
            _homogeneous(_peer(name, WIDTH, OUT, **options), has_types=False),
            is_heavy=True,
            tolerance=1e-4,
        )
        for name, options in (
            ("GATConv", {"heads": 2}),
            ("GCNConv", {}),
            ("GraphConv", {}),
            ("TransformerConv", {"heads": 2}),
        )
    ),
    Operation(
        "GINConv",
        _inputs,
        _homogeneous(
            lambda: sh.relational.GINConv(nn.Linear(WIDTH, OUT), train_eps=True), has_types=False
        ),
        is_heavy=True,
        tolerance=1e-4,
    ),
    Operation(
        "SimpleHGN",
        _inputs,
        _homogeneous(
            _peer("SimpleHGN", WIDTH, OUT, RELATIONS, edge_dim=4, heads=2), has_types=True
        ),
        is_heavy=True,
        tolerance=1e-4,
    ),
    Operation(
        "CompGCNConv",
        _inputs,
        _called(_peer("CompGCNConv", WIDTH, OUT, 2), _compose),
        is_heavy=True,
        tolerance=1e-4,
    ),
    Operation(
        "RelGraphConv",
        _inputs,
        _called(
            _peer("RelGraphConv", WIDTH, OUT, RELATIONS),
            lambda module, given, x: module(_ends(given), x, given["relation"]),
        ),
        is_heavy=True,
        tolerance=1e-4,
    ),
    Operation(
        "DGLHGTConv",
        _inputs,
        _called(_peer("DGLHGTConv", WIDTH, OUT, 2, 2, RELATIONS, dropout=0.0), _transform),
        is_heavy=True,
        tolerance=1e-4,
    ),
    *(
        Operation(
            name,
            _inputs,
            _called(
                _peer(name, WIDTH, OUT, *more, **options),
                lambda module, given, x: module(_ends(given), x),
            ),
            is_heavy=True,
            tolerance=1e-4,
        )
        for name, more, options in (
            ("DGLSAGEConv", ("mean",), {}),
            ("DGLGraphConv", (), {"allow_zero_in_degree": True}),
            ("DGLGATConv", (2,), {"allow_zero_in_degree": True}),
        )
    ),
    Operation(
        "HeteroConv",
        _inputs,
        _typed(
            lambda: sh.relational.HeteroConv(
                {each: sh.relational.SAGEConv((WIDTH, WIDTH), OUT) for each in TYPES[1]}
            )
        ),
        is_heavy=True,
        tolerance=1e-4,
    ),
    Operation(
        "accelerate", _inputs, _accelerated, _plain_accelerated, is_heavy=True, tolerance=1e-4
    ),
)
