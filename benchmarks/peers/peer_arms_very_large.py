"""GraphSAGE with DGL and PyG on a graph that is read from disk: arms for `bench_very_large_graph.py`.

Each has its own sampler and layers on the topology in memory, which is where they want it, and numpy's
memory map for the features. Where that does not fit, the process ends: that is the answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

SIZE, FAN_OUTS, WIDTH, RATE, CLASSES = 1024, [15, 10, 5], 64, 3e-3, 172


class Data:
    """What lies in the folder; the features are mapped."""

    def __init__(self, folder: str, threads: int) -> None:
        torch.set_num_threads(threads)
        place = Path(folder)
        self.graph = place / "graph"
        self.labels = torch.from_numpy(np.load(place / "labels.npy"))
        self.features = np.load(place / "features.npy", mmap_mode="r")
        seeds = torch.from_numpy(np.load(place / "seeds.npy"))
        generator = torch.Generator().manual_seed(0)
        self.order = seeds[torch.randperm(len(seeds), generator=generator)]
        self.widths = (self.features.shape[1], WIDTH, WIDTH, CLASSES)

    def column(self, name: str) -> torch.Tensor:
        """One column of the edges, read into memory."""
        return torch.from_numpy(np.load(self.graph / f"{name}.npy"))

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Features of some nodes."""
        return torch.from_numpy(self.features[ids.numpy()])


def train(model: nn.Module, batches: Iterable[tuple[Any, torch.Tensor, int]]) -> dict[str, float]:
    """Train on (what the model takes, labels, input rows)."""
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    found = {"batches": 0, "input_rows": 0}
    for inputs, labels, rows in batches:
        nn.functional.cross_entropy(model(*inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        found["batches"] += 1
        found["input_rows"] += rows
    return found


def make_dgl(folder: str, count: int, threads: int) -> Callable[[], Any]:
    import dgl_without_graphbolt  # noqa: F401

    # isort: split
    import dgl

    data = Data(folder, threads)
    # int64, as DGL's own: with int32 its sampler ended the process on these edges.
    ends = (data.column("source").long(), data.column("target").long())
    graph = dgl.graph(ends, num_nodes=len(data.labels)).formats(["csc"])
    del ends
    graph.create_formats_()
    sampler = dgl.dataloading.NeighborSampler(FAN_OUTS[::-1])
    seeds = data.order[: count * SIZE].to(graph.idtype)
    loader = dgl.dataloading.DataLoader(graph, seeds, sampler, batch_size=SIZE)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            pairs = itertools.pairwise(data.widths)
            self.layers = nn.ModuleList(dgl.nn.SAGEConv(*pair, "mean") for pair in pairs)

        def forward(self, blocks: Any, x: torch.Tensor) -> torch.Tensor:
            for number, (layer, block) in enumerate(zip(self.layers, blocks)):  # noqa: B905
                x = layer(block, x.relu() if number else x)
            return x

    def batches() -> Iterable[tuple[Any, torch.Tensor, int]]:
        for inputs, seeds, blocks in loader:
            yield (blocks, data.rows(inputs)), data.labels[seeds.long()], len(inputs)

    model = Model()
    return lambda: train(model, batches())


def make_pyg(folder: str, count: int, threads: int) -> Callable[[], Any]:
    from torch_geometric.data import Data as PyGData
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.nn import SAGEConv

    data = Data(folder, threads)
    edges = torch.stack([data.column("source").long(), data.column("target").long()])
    loader = NeighborLoader(
        PyGData(edge_index=edges, num_nodes=len(data.labels)),
        num_neighbors=FAN_OUTS,
        batch_size=SIZE,
        input_nodes=data.order[: count * SIZE],
    )
    del edges

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            pairs = itertools.pairwise(data.widths)
            self.layers = nn.ModuleList(SAGEConv(*pair) for pair in pairs)

        def forward(self, batch: Any, x: torch.Tensor) -> torch.Tensor:
            for number, layer in enumerate(self.layers):
                x = layer(x.relu() if number else x, batch.edge_index)
            return x[: batch.batch_size]

    def batches() -> Iterable[tuple[Any, torch.Tensor, int]]:
        for batch in loader:
            labels = data.labels[batch.n_id[: batch.batch_size]]
            yield (batch, data.rows(batch.n_id)), labels, len(batch.n_id)

    model = Model()
    return lambda: train(model, batches())


ARMS = {"dgl": make_dgl, "pyg": make_pyg}
