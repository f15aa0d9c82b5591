"""Train GraphSAGE with features that stay on disk, with the loss curve of features in memory.

    python examples/graph_on_disk/train_sage_from_disk.py

The graph is the source of the Python standard library on this machine: who defines, calls, imports
and inherits what. The task is to tell what a function gives back. The same model is trained twice from
the same seed: once with a plain tensor of features, once with a file of them, of which only the rows
of each mini-batch are read, while the batch before is trained on. The losses are equal to the last bit.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import shorthaul as sh
from shorthaul.graphs import Block, MiniBatch, MiniBatchLoader, RelationalGraph


class SAGE(nn.Module):
    """GraphSAGE: what a node is, and the mean of what its sampled neighbors are."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.own = nn.ModuleList(nn.Linear(*pair) for pair in pairs)
        self.neighbors = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in pairs)

    def forward(self, blocks: list[Block], x: torch.Tensor) -> torch.Tensor:
        """Scores of each class, for each seed."""
        for number, block in enumerate(blocks):
            own, neighbors = x[: block.num_targets], block.reduce(x, "mean")
            x = self.own[number](own) + self.neighbors[number](neighbors)
            if number + 1 < len(blocks):
                x = x.relu()
        return x


def train(loader: MiniBatchLoader, classes: int, width: int, epochs: int) -> list[float]:
    torch.manual_seed(0)
    model = SAGE(width, 64, classes)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(epochs):
        for batch in loader:
            loss = step(model, batch)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
    return losses


def step(model: SAGE, batch: MiniBatch) -> float:
    scores = model(batch.blocks, batch.features)
    loss = nn.functional.cross_entropy(scores, batch.labels)
    loss.backward()
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", type=int, default=150, help="of the standard library")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--cache", default="1MiB", help="rows from disk that are kept in memory")
    options = parser.parse_args()
    data = sh.datasets.python_graph(options.modules).with_reversed()
    graph = RelationalGraph.from_edge_index(data.edge_index, num_nodes=data.num_nodes)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "features.npy"
        np.save(path, data.features.numpy())
        on_disk = sh.open(path, cache="belady", cache_bytes=options.cache)
        losses, seconds = {}, {}
        for name, features in (("memory", data.features), ("disk", on_disk)):
            loader = MiniBatchLoader(
                graph, features, data.labels, data.train, 256, [10, 10], shuffle=True, seed=1
            )
            started = time.perf_counter()
            losses[name] = train(loader, data.num_classes, data.features.shape[1], options.epochs)
            seconds[name] = time.perf_counter() - started
        stats = on_disk.stats()
        on_disk.close()
    for number in range(0, len(losses["disk"]), max(1, len(losses["disk"]) // 8)):
        print(
            f"step {number:4}   memory {losses['memory'][number]:.6f}   "
            f"disk {losses['disk'][number]:.6f}"
        )
    if losses["memory"] != losses["disk"]:
        raise SystemExit("the losses differ, which must never happen")
    print("every loss is equal to the last bit")
    print(
        f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {len(losses['disk'])} steps: "
        f"{seconds['memory']:.1f} s from memory, {seconds['disk']:.1f} s from disk\n"
        f"{stats.unique_rows:,} rows asked of the disk table: {stats.hit_rate:.0%} were in the cache "
        f"of {options.cache}, {stats.read_bytes / 2**20:.0f} MiB were read"
    )


if __name__ == "__main__":
    main()
