"""R-GAT on a graph of IGBH's schema with PyG and with DGL: arms for `bench_igbh.py`.

Each library's own loader, sampler, layers and memory map, used as its documentation does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

HIDDEN, HEADS, CLASSES, FAN_OUTS = 512, 4, 2983, [15, 10, 5]


def load(folder: str, on_disk: bool) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The graph, and the features of each type."""
    saved = torch.load(Path(folder) / "graph.pt", weights_only=True)
    mode = "c" if on_disk else None  # copy on write: torch takes no array that is read only
    features = {
        kind: torch.from_numpy(np.load(Path(folder) / f"{kind}.npy", mmap_mode=mode))
        for kind in saved["nodes"]
    }
    return saved, features


def train(
    model: nn.Module, batches: Any, labels: torch.Tensor, count: int
) -> Callable[[], dict[str, float]]:
    """Steps on (inputs of the model, seeds, input nodes)."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses: list[float] = []  # the first tells whether a model starts as the others do

    def run() -> dict[str, float]:
        nodes = 0
        for inputs, seeds, read in batches():
            loss = nn.functional.cross_entropy(model(*inputs), labels[seeds])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            nodes += read
            losses.append(float(loss.detach()))
        return {"nodes": nodes / count, "loss": losses[0]}

    return run


def make_pyg(
    folder: str, batches: int, size: int, threads: int, on_disk: bool = False
) -> Callable[[], Any]:
    """PyG: `NeighborLoader`, and a `HeteroConv` of `GATConv` for each layer."""
    from torch_geometric.data import HeteroData
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.nn import GATConv, HeteroConv
    from torch_geometric.utils import trim_to_layer

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    saved, features = load(folder, on_disk)
    data = HeteroData()
    for kind, rows in features.items():
        data[kind].x = rows
    for relation, ends in saved["edges"].items():
        data[relation].edge_index = ends
    seeds = saved["seeds"][: batches * size]
    loader = NeighborLoader(data, FAN_OUTS, ("paper", seeds), batch_size=size)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = (features["paper"].shape[1], *[HIDDEN] * (len(FAN_OUTS) - 1))

            def make(inner: int) -> nn.Module:
                return GATConv((inner, inner), HIDDEN // HEADS, heads=HEADS, add_self_loops=False)

            self.layers = nn.ModuleList(
                HeteroConv({each: make(inner) for each in saved["edges"]}, aggr="sum")
                for inner in widths
            )
            self.classes = nn.Linear(HIDDEN, CLASSES)

        def forward(self, batch: Any) -> torch.Tensor:
            x, edges = batch.x_dict, batch.edge_index_dict
            can_trim = (
                "num_sampled_nodes" in batch["paper"]
            )  # pyg-lib counts, torch-sparse does not
            for number, layer in enumerate(self.layers):
                if can_trim:
                    counts = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
                    x, edges, _ = trim_to_layer(number, *counts, x, edges)
                x = {kind: nn.functional.leaky_relu(rows) for kind, rows in layer(x, edges).items()}
            return self.classes(x["paper"][: batch["paper"].batch_size])

    def made() -> Any:
        for batch in loader:
            nodes = sum(batch[kind].num_nodes for kind in saved["nodes"])
            yield (batch,), batch["paper"].n_id[: batch["paper"].batch_size], nodes

    return train(Model(), made, saved["labels"], batches)


def make_dgl(
    folder: str, batches: int, size: int, threads: int, on_disk: bool = False
) -> Callable[[], Any]:
    """DGL: `DataLoader`, and a `HeteroGraphConv` of `GATConv` for each layer."""
    import dgl_without_graphbolt  # noqa: F401

    # isort: split
    import dgl

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    saved, features = load(folder, on_disk)
    graph = dgl.heterograph(
        {relation: tuple(ends) for relation, ends in saved["edges"].items()}, saved["nodes"]
    ).formats(["csc"])
    graph.create_formats_()
    loader = dgl.dataloading.DataLoader(
        graph,
        {"paper": saved["seeds"][: batches * size]},
        dgl.dataloading.NeighborSampler(FAN_OUTS[::-1]),
        batch_size=size,
    )

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = (features["paper"].shape[1], *[HIDDEN] * (len(FAN_OUTS) - 1))

            def make(inner: int) -> nn.Module:
                return dgl.nn.GATConv(
                    (inner, inner), HIDDEN // HEADS, HEADS, allow_zero_in_degree=True
                )

            self.layers = nn.ModuleList(
                dgl.nn.HeteroGraphConv(
                    {name: make(inner) for _, name, _ in saved["edges"]}, aggregate="sum"
                )
                for inner in widths
            )
            self.classes = nn.Linear(HIDDEN, CLASSES)

        def forward(self, blocks: Any, x: Any) -> torch.Tensor:
            for layer, block in zip(self.layers, blocks):  # noqa: B905
                own = {kind: rows[: block.num_dst_nodes(kind)] for kind, rows in x.items()}
                x = {
                    kind: nn.functional.leaky_relu(rows.flatten(1))
                    for kind, rows in layer(block, (x, own)).items()
                }
            return self.classes(x["paper"])

    def made() -> Any:
        for inputs, seeds, blocks in loader:
            x = {kind: features[kind][ids] for kind, ids in inputs.items()}
            yield (blocks, x), seeds["paper"], sum(len(each) for each in inputs.values())

    return train(Model(), made, saved["labels"], batches)


ARMS = {"pyg": make_pyg, "dgl": make_dgl}
