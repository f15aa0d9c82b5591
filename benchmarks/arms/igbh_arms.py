"""R-GAT on a graph of IGBH's schema with shorthaul: arms for `bench_igbh.py`, in a process of their own.

The model is PyG's, as MLPerf's reference has it, accelerated; the loader is ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

# isort: split
if str(Path(__file__).parents[2]) not in sys.path:  # served by `arm_server.py`, from its own folder
    sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.arms.igbh_graph import CLASSES
from shorthaul.graphs import MiniBatchLoader, RelationalGraph
from shorthaul.relational import accelerate
from shorthaul.tensors import open as open_table

HIDDEN, HEADS, FAN_OUTS = 512, 4, [15, 10, 5]


class RGAT(nn.Module):
    """Three layers of attention, one for each relation, summed; then the classes."""

    def __init__(self, relations: list[Any], width: int) -> None:
        from torch_geometric.nn import GATConv, HeteroConv

        super().__init__()

        def make(inner: int) -> nn.Module:
            return GATConv((inner, inner), HIDDEN // HEADS, heads=HEADS, add_self_loops=False)

        self.layers = nn.ModuleList(
            HeteroConv({each: make(inner) for each in relations}, aggr="sum")
            for inner in (width, *[HIDDEN] * (len(FAN_OUTS) - 1))
        )
        self.classes = nn.Linear(HIDDEN, CLASSES)

    def forward(self, typed: Any) -> torch.Tensor:
        """Scores of each class for each seed."""
        x = typed.x_dict
        for layer, block in zip(self.layers, typed.blocks, strict=True):
            found = layer(block.pairs(x), block.edge_index_dict)
            x = {kind: nn.functional.leaky_relu(each) for kind, each in found.items()}
        scores: torch.Tensor = self.classes(typed.seeds(x))
        return scores


def make_ours(
    folder: str, batches: int, size: int, threads: int, cached: int = 0, resample: bool = False
) -> Callable[[], Any]:
    """Training steps on some batches; with `cached`, features stay on disk but for one of so many bytes."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    saved = torch.load(Path(folder) / "graph.pt", weights_only=True)
    graph = RelationalGraph.from_typed_edges(saved["edges"], saved["nodes"])
    graph.by_target()
    features = {kind: _read(Path(folder) / f"{kind}.npy", cached) for kind in graph.node_types}
    seeds = saved["seeds"][: batches * size]
    loader = MiniBatchLoader(
        graph,
        features,
        {"paper": saved["labels"]},
        ("paper", seeds),
        size,
        num_neighbors=FAN_OUTS,
        resample=resample,
    )
    model = RGAT([tuple(each) for each in graph.relations], features["paper"].shape[1])
    accelerate(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses: list[float] = []  # the first tells whether a model starts as the others do

    def run() -> dict[str, float]:
        nodes = 0
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch.to_hetero()), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            nodes += len(batch.blocks[0].source_nodes)
            losses.append(float(loss.detach()))
        return {"nodes": nodes / batches, "loss": losses[0]}

    return run


def _read(path: Path, cached: int) -> Any:
    if cached:
        return open_table(path, cache="belady", cache_bytes=path.stat().st_size // cached)
    return torch.from_numpy(np.load(path))


ARMS = {"ours": make_ours}
