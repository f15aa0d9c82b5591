"""The act of `relational`: R-GCN by plain PyTorch, and compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from shorthaul.cli.acts.stage import Outcome, Stage
from shorthaul.cli.acts.training import Training, compare_trainings, train
from shorthaul.datasets import python_graph
from shorthaul.graphs import RelationalGraph
from shorthaul.relational import RGCNConv

WIDTH = 64
LOSS_TOLERANCE = 5e-3  # sums in another order, over the steps of a training


class SmallRGCN(nn.Module):
    """Two relational convolutions that tell what functions give back."""

    def __init__(self, features: int, classes: int, relations: int, backend: str) -> None:
        super().__init__()
        self.first = RGCNConv(features, WIDTH, relations)
        self.second = RGCNConv(WIDTH, classes, relations)
        for each in (self.first, self.second):
            each.function.backend = backend

    def forward(self, graph: RelationalGraph, x: torch.Tensor) -> torch.Tensor:
        """Scores of each class, for each node."""
        out: torch.Tensor = self.second(self.first(x, graph).relu(), graph)
        return out


def show_relational(stage: Stage) -> Outcome:
    """Train by the plain backend, then by generated kernels; the losses must agree."""
    stage.say("reading the standard library")
    data = python_graph(40 if stage.is_quick else 200).with_reversed()
    graph = data.graph()
    steps = 4 if stage.is_quick else 20

    def run(name: str, backend: str) -> Training:
        torch.manual_seed(0)
        model = SmallRGCN(data.features.shape[1], data.num_classes, graph.num_relations, backend)

        def step(model: nn.Module, _: Any) -> torch.Tensor:
            scores = model(graph, data.features)[data.train]
            loss = nn.functional.cross_entropy(scores, data.labels[data.train])
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        step(model, None)  # compiles, and indexes the graph
        model.zero_grad()
        trained = train(name, model, range(steps), step, stage.say, learning_rate=1e-2)
        with torch.no_grad():
            told = model(graph, data.features)[data.test].argmax(1)
        share = float((told == data.labels[data.test]).float().mean())
        return replace(trained, name=f"{name}: {share:.1%} right", extra={"accuracy": share})

    plain, ours = run("plain PyTorch", "reference"), run("compiled", "auto")
    differences = [abs(a - b) for a, b in zip(plain.losses, ours.losses, strict=True)]
    return compare_trainings(plain, ours, holds=max(differences) < LOSS_TOLERANCE)
