"""Whole heterogeneous models as arms of a process of their own: PyG's, compiled, and accelerated by us."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

# isort: split
if str(Path(__file__).parents[2]) not in sys.path:  # served by `arm_server.py`, from its own folder
    sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.arms.relational_graphs import load_graph, name_types
from shorthaul.relational import accelerate

WIDTH, HEADS = 64, 4
KINDS = ("SAGE", "GAT", "GATv2", "to_hetero SAGE")


class Layers(nn.Module):
    """Two `HeteroConv` with a layer of one kind for each relation."""

    def __init__(self, kind: str, relations: list[Any]) -> None:
        super().__init__()
        self.first, self.second = (_make_hetero(kind, relations) for _ in range(2))

    def forward(self, x: dict[str, torch.Tensor], edges: dict[Any, torch.Tensor]) -> Any:
        """Results of all types."""
        hidden = {name: value.relu() for name, value in self.first(x, edges).items()}
        return self.second({**x, **hidden}, edges)


class Homogeneous(nn.Module):
    """What `to_hetero` is given."""

    def __init__(self) -> None:
        import torch_geometric.nn as pyg

        super().__init__()
        self.first, self.second = (pyg.SAGEConv((WIDTH, WIDTH), WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """New features of the nodes."""
        hidden: torch.Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
        return hidden


def _make_hetero(kind: str, relations: list[Any]) -> nn.Module:
    import torch_geometric.nn as pyg

    widths, part = (WIDTH, WIDTH), WIDTH // HEADS
    make = {
        "SAGE": lambda: pyg.SAGEConv(widths, WIDTH),
        "GAT": lambda: pyg.GATConv(widths, part, heads=HEADS, add_self_loops=False),
        "GATv2": lambda: pyg.GATv2Conv(widths, part, heads=HEADS, add_self_loops=False),
    }[kind]
    made: nn.Module = pyg.HeteroConv({each: make() for each in relations})
    return made


def make_model(
    arm: str, kind: str, graph: str, training: bool, threads: int
) -> Callable[[], object]:
    """A model's inference, or a step of training; every arm has the same parameters and inputs."""
    warnings.filterwarnings("ignore")  # PyG tells of types that nothing leads to
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    loaded = name_types(load_graph(graph))
    start = dict(zip(loaded.node_types, loaded.node_offsets, strict=False))
    edges = {}
    for number, each in enumerate(loaded.relations):
        chosen = loaded.relation == number
        ends = loaded.source[chosen] - start[each[0]], loaded.target[chosen] - start[each[2]]
        edges[tuple(each)] = torch.stack(ends).long()
    counts = dict(zip(loaded.node_types, loaded.nodes_per_type, strict=True))
    x = {name: torch.randn(count, WIDTH) for name, count in counts.items()}
    model = _make(kind, list(counts), list(edges))
    run: Any = model
    if arm == "shorthaul":
        accelerate(model)
    elif arm == "PyG compiled":
        run = torch.compile(model)
    step = _train if training else _infer
    return lambda: step(run, model, x, edges)


def _make(kind: str, types: list[str], relations: list[Any]) -> nn.Module:
    if kind != "to_hetero SAGE":
        return Layers(kind, relations)
    import torch_geometric.nn as pyg

    torch.manual_seed(0)
    made: nn.Module = pyg.to_hetero(Homogeneous(), (types, relations))
    return made


def _infer(run: Any, model: nn.Module, x: Any, edges: Any) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return _join(run(x, edges))


def _train(run: Any, model: nn.Module, x: Any, edges: Any) -> torch.Tensor:
    model.train()
    model.zero_grad()
    out = _join(run(x, edges))
    out.square().mean().backward()
    gradients = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
    return torch.cat([out.detach().flatten(), *gradients])


def _join(parts: dict[str, torch.Tensor]) -> torch.Tensor:
    """All results in one order: models may name the types in another."""
    return torch.cat([parts[name] for name in sorted(parts) if parts[name] is not None])


ARMS = {"model": make_model}
