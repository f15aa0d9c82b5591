"""Relational layers, ready ones and models of PyG's, on graphs and blocks."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.graphs import NeighborSampler
from tests.gpu.suites import CLOSE, body, small_graph


@body
def layers_compute_what_the_cpu_computes(device: torch.device) -> None:
    graph, one, x = small_graph(), small_graph(1), torch.randn(12, 8)
    (block,) = NeighborSampler(graph, [-1]).sample(torch.arange(5)).blocks
    kinds = sh.relational
    for layer, edges in (
        (kinds.RGCNConv(8, 4, 3), graph),
        (kinds.RGATConv(8, 4, 3), block),
        (kinds.SAGEConv(8, 4), one),
    ):
        inputs = x if edges is not block else x[block.source_nodes.long()]
        far = copy.deepcopy(layer).to(device)
        there = inputs.to(device).requires_grad_()
        here = inputs.clone().requires_grad_()
        got = far(there, edges.to(device) if edges is block else edges)
        expected = layer(here, edges)
        torch.testing.assert_close(got.cpu(), expected, **CLOSE)
        got.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(there.grad.cpu(), here.grad, **CLOSE)
        for mine, yours in zip(far.parameters(), layer.parameters(), strict=True):
            assert (mine.grad is None) == (yours.grad is None)
            if mine.grad is not None:
                torch.testing.assert_close(mine.grad.cpu(), yours.grad, **CLOSE)


def _steps(layer: nn.Module, x: torch.Tensor, edges: Any) -> Iterator[torch.Tensor]:
    out = layer(x, edges)
    yield out
    out.square().sum().backward()
    yield from (each.grad for each in layer.parameters() if each.grad is not None)
    layer.zero_grad()


@body
def ready_layers_of_one_relation_move_there_and_back(device: torch.device) -> None:
    kinds, graph, x = sh.relational, small_graph(1), torch.randn(12, 8)
    for layer in (
        kinds.GCNConv(8, 4),
        kinds.GINConv(nn.Linear(8, 4)),
        kinds.GraphConv(8, 4),
        kinds.GATv2Conv(8, 4, heads=2),
        kinds.TransformerConv(8, 4),
    ):
        expected = list(_steps(layer, x, graph))
        layer.to(device)
        for got, wanted in zip(_steps(layer, x.to(device), graph), expected, strict=True):
            assert got.device == device
            torch.testing.assert_close(got.cpu(), wanted, **CLOSE)
        layer.to("cpu")
        torch.testing.assert_close(layer(x, graph), expected[0])


@body
def typed_layers_take_features_by_name(device: torch.device) -> None:
    draw = torch.Generator().manual_seed(0)
    kinds, words = sh.relational, (("a", "to", "b"), ("b", "back", "a"))
    edges = {each: torch.randint(4, (2, 9), generator=draw) for each in words}
    x = {name: torch.randn(4, 8) for name in "ab"}
    moved_edges = {each: ends.to(device) for each, ends in edges.items()}
    moved = {name: each.to(device) for name, each in x.items()}
    for layer in (
        kinds.HGTConv(8, 4, (["a", "b"], [*words]), heads=2),
        kinds.HeteroConv({each: kinds.SAGEConv((8, 8), 4) for each in words}),
    ):
        expected = layer(x, edges)
        got = copy.deepcopy(layer).to(device)(moved, moved_edges)
        for name, rows in expected.items():
            torch.testing.assert_close(got[name].cpu(), rows, **CLOSE)
            got[name].sum().backward(retain_graph=True)


@body
def accelerated_models_of_pyg_move_to_the_device(device: torch.device) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    draw = torch.Generator().manual_seed(0)
    ends, kind = torch.randint(10, (2, 30), generator=draw), torch.randint(3, (30,), generator=draw)
    x = torch.randn(10, 8)
    for theirs, arguments in (
        (pyg.RGCNConv(8, 4, 3), (ends, kind)),
        (pyg.SAGEConv(8, 4), (ends,)),
        (pyg.GATConv(8, 4), (ends,)),
    ):
        expected = theirs(x, *arguments)
        moved = [each.to(device) for each in arguments]
        before, after = (nn.ModuleList([copy.deepcopy(theirs)]) for _ in range(2))
        sh.relational.accelerate(before)
        sh.relational.accelerate(after.to(device))
        for model in (before.to(device), after):
            got = model[0](x.to(device), *moved)
            torch.testing.assert_close(got.cpu(), expected, **CLOSE)
            got.sum().backward()
        torch.testing.assert_close(before.to("cpu")[0](x, *arguments), expected, **CLOSE)


@body
def tensors_of_two_places_are_refused_by_name(device: torch.device) -> None:
    layer = sh.relational.RGCNConv(8, 4, 3).to(device)
    with pytest.raises(sh.errors.LayerArgumentError, match="all tensors on one device"):
        layer(torch.randn(12, 8), small_graph())
