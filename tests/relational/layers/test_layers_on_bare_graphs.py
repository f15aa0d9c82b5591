"""Layers on graphs that have next to nothing, and on a hub, against PyG's in float64: results and gradients."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from shorthaul.relational import accelerate
from tests.relational.layers import comparing

pyg = pytest.importorskip("torch_geometric.nn")

pytestmark = pytest.mark.filterwarnings("ignore")

NODES = 9
GRAPHS = {
    "no edges": torch.empty(2, 0, dtype=torch.int64),
    "one edge": torch.tensor([[4], [2]]),
    "one loop": torch.tensor([[3], [3]]),
    "isolated nodes": torch.tensor([[0, 1, 1, 2], [1, 0, 2, 2]]),
    "the same edge again": torch.tensor([[5, 5, 5, 0], [6, 6, 6, 6]]),
    "a hub": torch.stack([torch.arange(60) % NODES, torch.full((60,), 7)]),
    "a hub of sources": torch.stack([torch.full((60,), 7), torch.arange(60) % NODES]),
}
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "GATConv": lambda: pyg.GATConv(4, 3, heads=2, residual=True),
    "GATConv without loops": lambda: pyg.GATConv(4, 3, heads=2, add_self_loops=False),
    "GATv2Conv": lambda: pyg.GATv2Conv(4, 3, heads=2),
    "GCNConv": lambda: pyg.GCNConv(4, 3),
    "GCNConv without loops": lambda: pyg.GCNConv(4, 3, add_self_loops=False),
    "GINConv": lambda: pyg.GINConv(nn.Linear(4, 3), train_eps=True),
    "GraphConv max": lambda: pyg.GraphConv(4, 3, aggr="max"),
    "SAGEConv": lambda: pyg.SAGEConv(4, 3),
    "SAGEConv min": lambda: pyg.SAGEConv(4, 3, aggr="min", normalize=True),
    "TransformerConv": lambda: pyg.TransformerConv(4, 3, heads=2, beta=True),
}
TYPES = [("a", "x", "b"), ("b", "y", "a"), ("a", "z", "a")]
KINDS: dict[str, Callable[[], nn.Module]] = {
    "gat": lambda: pyg.GATConv((4, 4), 3, add_self_loops=False),
    "graph": lambda: pyg.GraphConv((4, 4), 3),
    "sage": lambda: pyg.SAGEConv((4, 4), 3),
    "transformer": lambda: pyg.TransformerConv((4, 4), 3),
}


def _check(theirs: nn.Module, call: Callable[..., object], backend: str, case: str) -> None:
    torch.manual_seed(1)
    for each in theirs.parameters():
        nn.init.normal_(each)
    ours = copy.deepcopy(theirs)
    assert not accelerate(ours).left
    for each in ours.modules():
        comparing.use_backend(each, backend)
        for is_weighted in (False, True) if hasattr(each, "message_function") else ():
            function = each.message_function(is_weighted=is_weighted)
            if not isinstance(function, str):
                function.backend = backend
    floats = {name: torch.randn(NODES, 4, dtype=torch.float64) for name in "ab"}
    expected = comparing.run_layer(theirs, call, floats, torch.float64)
    found = comparing.run_layer(ours, call, floats, torch.float64)
    comparing.assert_close(found, expected, comparing.allow_double(expected), case)


def _check_layer(name: str, graph: str, backend: str) -> None:
    edges = GRAPHS[graph]
    _check(LAYERS[name](), lambda layer, x: layer(x["a"], edges), backend, f"{name} on {graph}")


def _check_model(kind: str, graph: str, aggr: str, backend: str) -> None:
    layer = pyg.HeteroConv({each: KINDS[kind]() for each in TYPES}, aggr)
    # The first relation is bare, the others have a few edges.
    edges = dict.fromkeys(TYPES, GRAPHS["isolated nodes"]) | {TYPES[0]: GRAPHS[graph]}
    _check(layer, lambda model, x: model(x, edges), backend, f"{kind}, {aggr}, on {graph}")


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_one_relation(name: str, graph: str) -> None:
    _check_layer(name, graph, "reference")


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(
    ("kind", "aggr"), [("gat", "sum"), ("graph", "max"), ("sage", "mean"), ("transformer", "mean")]
)
def test_a_model_of_relations(kind: str, aggr: str, graph: str) -> None:
    _check_model(kind, graph, aggr, "reference")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kernels_compute_the_same() -> None:
    for graph in GRAPHS:
        for name in LAYERS:
            _check_layer(name, graph, "auto")
        for kind in KINDS:
            _check_model(kind, graph, "sum", "auto")
