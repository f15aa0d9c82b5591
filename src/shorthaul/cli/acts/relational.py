"""R-GCN and RGAT on the imports and calls of the standard library: as they are installed, and compiled.

As they are installed: by PyG where it is there, else as one writes them in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from shorthaul.cli.acts.cue import Cue
from shorthaul.cli.acts.plain_layers import PlainEdges, plain_rgat, plain_rgcn
from shorthaul.cli.acts.stage import Run
from shorthaul.cli.acts.training import train
from shorthaul.datasets import python_graph
from shorthaul.datasets.python_graph import PythonGraph
from shorthaul.relational import RGATConv, RGCNConv, accelerate

Convolve = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class TwoLayers(nn.Module):
    """Two relational layers that tell what functions give back."""

    def __init__(self, layers: Sequence[nn.Module], convolve: Convolve) -> None:
        super().__init__()
        self.first, self.second = layers
        self.convolve = convolve

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of each class, for each node."""
        return self.convolve(self.second, self.convolve(self.first, x).relu())


def play(role: str, *, is_quick: bool, cue: Cue) -> Run:
    """Train R-GCN."""
    cue.say("reading the standard library")
    data = python_graph(50 if is_quick else 100).with_reversed()
    return _train("RGCNConv", role, data, 64, 2 if is_quick else 5, cue)


def play_attention(role: str, *, is_quick: bool, cue: Cue) -> Run:
    """Train RGAT, whose PyG layer makes a weight matrix for each edge: a smaller graph, narrower."""
    cue.say("reading the standard library")
    data = python_graph(25 if is_quick else 50).with_reversed()
    return _train("RGATConv", role, data, 32, 2 if is_quick else 4, cue)


def _train(name: str, role: str, data: PythonGraph, width: int, steps: int, cue: Cue) -> Run:
    torch.manual_seed(0)
    model, what = _make_model(name, role == "plain", data, width)

    def step(model: nn.Module, _: Any) -> torch.Tensor:
        scores = model(data.features)[data.train]
        loss = nn.functional.cross_entropy(scores, data.labels[data.train])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    return train(role, what, model, [[None]] * (1 + steps), step, cue, learning_rate=1e-2)


def _make_model(name: str, is_plain: bool, data: PythonGraph, width: int) -> tuple[nn.Module, str]:
    """The same parameters in both roles, and what computes with them."""
    widths = ((data.features.shape[1], width), (width, data.num_classes))
    relations = len(data.relations)
    try:
        import torch_geometric.nn as pyg
    except ImportError:
        kind = {"RGCNConv": RGCNConv, "RGATConv": RGATConv}[name]
        layers = [kind(*each, relations) for each in widths]
        graph = data.graph()
        if not is_plain:
            compiled: Convolve = lambda layer, x: layer(x, graph)  # noqa: E731
            return TwoLayers(layers, compiled), "layers compiled into one pass"
        edges, plain = PlainEdges(graph), plain_rgcn if name == "RGCNConv" else plain_rgat
        written: Convolve = lambda layer, x: plain(layer, x, edges)  # noqa: E731
        return TwoLayers(layers, written), "plain PyTorch, product by product"
    layers = [getattr(pyg, name)(*each, relations) for each in widths]
    call: Convolve = lambda layer, x: layer(x, data.edge_index, data.edge_type)  # noqa: E731
    model = TwoLayers(layers, call)
    if is_plain:
        return model, f"PyG's {name}"
    accelerate(model)
    return model, f"PyG's {name} compiled in place"
