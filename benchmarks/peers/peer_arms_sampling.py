"""How DGL and PyG sample neighbors: arms for `bench_sampling.py`, in the peers' environment.

Each arm samples the given batches and returns how many input nodes and edges they had on average.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from arxiv import load_arxiv, shuffled_batches


def make_dgl(fan_outs: list[int], size: int, count: int, threads: int) -> Callable[[], Any]:
    """DGL's sampler itself, without a loader around it; it uses all threads."""
    import dgl_without_graphbolt  # noqa: F401

    # isort: split
    import dgl

    torch.set_num_threads(threads)
    data = load_arxiv()
    graph = dgl.graph(tuple(data.edge_index), num_nodes=data.num_nodes).formats(["csc"])
    graph.create_formats_()
    sampler = dgl.dataloading.NeighborSampler(fan_outs[::-1])
    batches = shuffled_batches(data.train, size, 0)[:count]

    def run() -> dict[str, float]:
        nodes = edges = 0
        for seeds in batches:
            inputs, _, blocks = sampler.sample(graph, seeds)
            nodes += len(inputs)
            edges += sum(each.num_edges() for each in blocks)
        return {"nodes": nodes / count, "edges": edges / count}

    return run


def make_pyg(
    fan_outs: list[int], size: int, count: int, threads: int, workers: int = -1
) -> Callable[[], Any]:
    """PyG's sampler itself (`workers` -1), or its `NeighborLoader` with that many workers."""
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.sampler import NodeSamplerInput

    torch.set_num_threads(threads)
    data = load_arxiv()
    batches = shuffled_batches(data.train, size, 0)[:count]
    loader = NeighborLoader(
        Data(edge_index=data.edge_index, num_nodes=data.num_nodes),
        num_neighbors=fan_outs,
        batch_size=size,
        input_nodes=torch.cat(batches),
        num_workers=max(0, workers),
        persistent_workers=workers > 0,
    )

    def sample() -> dict[str, float]:
        nodes = edges = 0
        for seeds in batches:
            out = loader.node_sampler.sample_from_nodes(NodeSamplerInput(None, seeds))
            nodes += len(out.node)
            edges += len(out.row)
        return {"nodes": nodes / count, "edges": edges / count}

    def load() -> dict[str, float]:
        nodes = edges = 0
        for batch in loader:
            nodes += batch.num_nodes
            edges += batch.num_edges
        return {"nodes": nodes / count, "edges": edges / count}

    return sample if workers < 0 else load


ARMS = {"dgl": make_dgl, "pyg": make_pyg}
