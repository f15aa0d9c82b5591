"""R-GCN on the imports and calls of the standard library: by plain PyTorch, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shorthaul.cli.acts.stage import Run
from shorthaul.cli.acts.training import train
from shorthaul.datasets import python_graph
from shorthaul.graphs import RelationalGraph
from shorthaul.relational import RGCNConv

WIDTH = 128

Convolve = Callable[[RGCNConv, torch.Tensor], torch.Tensor]


class SmallRGCN(nn.Module):
    """Two relational convolutions that tell what functions give back."""

    def __init__(self, features: int, classes: int, relations: int, convolve: Convolve) -> None:
        super().__init__()
        self.first = RGCNConv(features, WIDTH, relations)
        self.second = RGCNConv(WIDTH, classes, relations)
        self.convolve = convolve

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of each class, for each node."""
        return self.convolve(self.second, self.convolve(self.first, x).relu())


class PlainConvolution:
    """The same convolution as one writes it in PyTorch: rows by relation, a product for each, one sum."""

    def __init__(self, graph: RelationalGraph) -> None:
        index = graph.by_relation()
        self.sources, self.targets = index.sources.long(), index.targets.long()
        self.counts = index.pointers.diff().tolist()
        relations = torch.arange(
            len(self.counts), dtype=torch.int64, device="cpu"
        ).repeat_interleave(torch.tensor(self.counts, dtype=torch.int64, device="cpu"))
        _, pairs, sizes = torch.unique(
            relations * graph.num_nodes + self.targets, return_inverse=True, return_counts=True
        )
        self.shares = sizes.float().reciprocal()[pairs][:, None]  # of a mean over each relation

    def __call__(self, layer: RGCNConv, x: torch.Tensor) -> torch.Tensor:
        """What `layer` computes, with its parameters."""
        if layer.root is None or layer.bias is None:
            raise ValueError("the demo's layers have a root weight and a bias")
        rows = torch.split(x[self.sources], self.counts)
        messages = torch.cat([row @ weight for row, weight in zip(rows, layer.weight, strict=True)])
        return (x @ layer.root + layer.bias).index_add(0, self.targets, self.shares * messages)


def play(role: str, *, is_quick: bool, say: Callable[[str], None]) -> Run:
    """Train by plain PyTorch, or by generated kernels."""
    say("reading the standard library")
    data = python_graph(100 if is_quick else 200).with_reversed()
    graph = data.graph()
    steps = 1 + (3 if is_quick else 15)
    is_plain = role == "plain"
    convolve: Convolve = lambda layer, x: layer(x, graph)  # noqa: E731
    if is_plain:
        convolve = PlainConvolution(graph)
    torch.manual_seed(0)
    model = SmallRGCN(data.features.shape[1], data.num_classes, graph.num_relations, convolve)

    def step(model: nn.Module, _: Any) -> torch.Tensor:
        scores = model(data.features)[data.train]
        loss = nn.functional.cross_entropy(scores, data.labels[data.train])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    what = "products by relation, then a sum" if is_plain else "compiled into one pass"
    run = train(role, what, model, range(steps), step, say, learning_rate=1e-2)
    with torch.no_grad():
        told = model(data.features)[data.test].argmax(1)
    run.extra["accuracy"] = float((told == data.labels[data.test]).float().mean())
    return run
