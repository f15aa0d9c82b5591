"""The act of `tensors` and `graphs`: GraphSAGE with its features in memory, and on disk."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from shorthaul.cli.acts.stage import Outcome, Stage
from shorthaul.cli.acts.training import Training, compare_trainings, train
from shorthaul.datasets import python_graph
from shorthaul.graphs import MiniBatch, MiniBatchLoader, RelationalGraph
from shorthaul.settings import settings
from shorthaul.tensors import open as open_table
from shorthaul.units import format_bytes

WIDTH, BATCH, FAN_OUTS = 64, 256, (10, 10)


class SmallSAGE(nn.Module):
    """Two layers: what a node is, and the mean of what its sampled neighbors are."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        pairs = ((features, WIDTH), (WIDTH, classes))
        self.own = nn.ModuleList(nn.Linear(*pair) for pair in pairs)
        self.neighbors = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in pairs)

    def forward(self, batch: MiniBatch) -> torch.Tensor:
        """The loss of telling the seeds' classes."""
        x = batch.features
        assert isinstance(x, torch.Tensor)
        for number, block in enumerate(batch.blocks):
            x = x.relu() if number else x
            own, neighbors = x[: block.num_targets], block.reduce(x, "mean")
            x = self.own[number](own) + self.neighbors[number](neighbors)
        assert batch.labels is not None
        return nn.functional.cross_entropy(x, batch.labels)


def show_tensors(stage: Stage) -> Outcome:
    """Train with features in memory, then from a file of them; the losses must be the same bits."""
    stage.say("reading the standard library")
    data = python_graph(40 if stage.is_quick else 200).with_reversed()
    graph = RelationalGraph.from_edge_index(data.edge_index, num_nodes=data.num_nodes)
    seeds = data.train[: 4 * BATCH] if stage.is_quick else data.train

    def run(name: str, features: Any) -> Training:
        torch.manual_seed(0)
        model = SmallSAGE(data.features.shape[1], data.num_classes)
        loader = MiniBatchLoader(
            graph, features, data.labels, seeds, BATCH, FAN_OUTS, shuffle=True, seed=1
        )
        return train(name, model, loader, _step, stage.say, learning_rate=3e-3)

    table_bytes = data.features.numel() * data.features.element_size()
    with tempfile.TemporaryDirectory(dir=settings.scratch_directory) as directory:
        path = Path(directory) / "features.npy"
        np.save(path, data.features.numpy())
        on_disk = open_table(path, cache="belady", cache_bytes=max(1, table_bytes // 10))
        plain = run("features in memory", data.features)
        ours = run("features on disk", on_disk)
        stats = on_disk.stats()
        on_disk.close()
    plain = replace(
        plain,
        name=f"in memory: {format_bytes(table_bytes)} of features",
        extra={"table_bytes": table_bytes},
    )
    ours = replace(
        ours,
        name=f"on disk: a tenth cached, {stats.hit_rate:.0%} of rows found there",
        extra={"hit_rate": stats.hit_rate, "saved_bytes": stats.saved_bytes},
    )
    return compare_trainings(plain, ours, holds=plain.losses == ours.losses)


def _step(model: nn.Module, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()
