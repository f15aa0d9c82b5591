"""GraphSAGE on ogbn-arxiv with DGL and with PyG: arms for `bench_sage_epoch.py`.

Each library's own loader, sampler and `SAGEConv`, used as its documentation does. An epoch trains a
fresh model on every training node once; the accuracy is that on the last third, before learning it. All
start with the same weights and meet the nodes in the same order, so that only what is sampled differs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from arxiv import CLASSES, load_arxiv, shuffle, start_alike
from torch import nn

SIZE, FAN_OUTS, WIDTH, RATE = 1024, [15, 10, 5], 64, 3e-3
WIDTHS = (128, WIDTH, WIDTH, CLASSES)


def train(model: nn.Module, batches: Iterable[tuple[Any, torch.Tensor]]) -> dict[str, float]:
    """Train on (what the model takes, labels)."""
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    right: list[float] = []
    for inputs, labels in batches:
        scores = model(*inputs)
        nn.functional.cross_entropy(scores, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        right.append(float((scores.detach().argmax(1) == labels).float().mean()))
    last = right[-max(1, len(right) // 3) :]
    return {"accuracy": sum(last) / len(last)}


def make_dgl(
    count: int, threads: int, workers: int, is_trained: bool = True, seed: int = 0
) -> Callable[[], Any]:
    import dgl_without_graphbolt  # noqa: F401

    # isort: split
    import dgl

    torch.set_num_threads(threads)
    data = load_arxiv()
    graph = dgl.graph(tuple(data.edge_index), num_nodes=data.num_nodes).formats(["csc"])
    graph.create_formats_()
    graph.ndata["feat"], graph.ndata["label"] = data.features, data.labels
    sampler = dgl.dataloading.NeighborSampler(
        FAN_OUTS[::-1], prefetch_node_feats=["feat"], prefetch_labels=["label"]
    )
    loader = dgl.dataloading.DataLoader(
        graph,
        shuffle(data.train, seed)[: count * SIZE],
        sampler,
        batch_size=SIZE,
        num_workers=workers,
    )

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            pairs = itertools.pairwise(WIDTHS)
            self.layers = nn.ModuleList(dgl.nn.SAGEConv(*pair, "mean") for pair in pairs)
            weights = [(each.fc_self.weight, each.fc_neigh.weight) for each in self.layers]
            start_alike(self, weights, seed)

        def forward(self, blocks: Any) -> torch.Tensor:
            x = blocks[0].srcdata["feat"]
            for number, (layer, block) in enumerate(zip(self.layers, blocks)):  # noqa: B905
                x = layer(block, x.relu() if number else x)
            return x

    batches = lambda: (((blocks,), blocks[-1].dstdata["label"]) for _, _, blocks in loader)  # noqa: E731
    return lambda: _run(Model, batches(), is_trained)


def make_pyg(
    count: int, threads: int, workers: int, is_trained: bool = True, seed: int = 0
) -> Callable[[], Any]:
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.nn import SAGEConv
    from torch_geometric.utils import trim_to_layer

    torch.set_num_threads(threads)
    data = load_arxiv()
    loader = NeighborLoader(
        Data(x=data.features, y=data.labels, edge_index=data.edge_index),
        num_neighbors=FAN_OUTS,
        batch_size=SIZE,
        input_nodes=shuffle(data.train, seed)[: count * SIZE],
        num_workers=workers,
        persistent_workers=workers > 0,
    )

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            pairs = itertools.pairwise(WIDTHS)
            self.layers = nn.ModuleList(SAGEConv(*pair) for pair in pairs)
            weights = [(each.lin_r.weight, each.lin_l.weight) for each in self.layers]
            start_alike(self, weights, seed)

        def forward(self, batch: Any) -> torch.Tensor:
            x, edge_index = batch.x, batch.edge_index
            can_trim = "num_sampled_nodes" in batch  # pyg-lib counts them, torch-sparse does not
            for number, layer in enumerate(self.layers):
                if can_trim:
                    counts = batch.num_sampled_nodes, batch.num_sampled_edges
                    x, edge_index, _ = trim_to_layer(number, *counts, x, edge_index)
                x = layer(x.relu() if number else x, edge_index)
            return x[: batch.batch_size]

    batches = lambda: (((batch,), batch.y[: batch.batch_size]) for batch in loader)  # noqa: E731
    return lambda: _run(Model, batches(), is_trained)


def _run(
    model: Callable[[], nn.Module], batches: Iterable[Any], is_trained: bool
) -> dict[str, float]:
    if is_trained:
        return train(model(), batches)
    return {"batches": float(sum(1 for _ in batches))}


ARMS = {"dgl": make_dgl, "pyg": make_pyg}
