"""How DGL and PyG sample neighbors: arms for `bench_sampling.py`, in the peers' environment.

Each arm samples the given batches and returns how many input nodes and edges they had on average.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from arxiv import draw_times, draw_weights, load_arxiv, shuffled_batches


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


def make_temporal(fan_outs: list[int], size: int, count: int, threads: int) -> Callable[[], Any]:
    """PyG's sampler, where a seed sees no node that is later than itself."""
    return _make_with(fan_outs, size, count, threads, time_attr="time")


def make_weighted(fan_outs: list[int], size: int, count: int, threads: int) -> Callable[[], Any]:
    """PyG's sampler, in proportion to weights of edges."""
    return _make_with(fan_outs, size, count, threads, weight_attr="weight")


def _make_with(
    fan_outs: list[int], size: int, count: int, threads: int, **attributes: str
) -> Callable[[], Any]:
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.sampler import NodeSamplerInput

    torch.set_num_threads(threads)
    data = load_arxiv()
    batches = shuffled_batches(data.train, size, 0)[:count]
    given = Data(
        edge_index=data.edge_index,
        num_nodes=data.num_nodes,
        time=draw_times(data),
        weight=draw_weights(data),
    )
    loader = NeighborLoader(
        given, fan_outs, batch_size=size, input_nodes=torch.cat(batches), **attributes
    )
    times = given.time if "time_attr" in attributes else None

    def run() -> dict[str, float]:
        nodes = edges = 0
        for seeds in batches:
            asked = NodeSamplerInput(None, seeds, None if times is None else times[seeds])
            out = loader.node_sampler.sample_from_nodes(asked)
            nodes += len(out.node)
            edges += len(out.row)
        return {"nodes": nodes / count, "edges": edges / count}

    return run


def make_dropping(fan_outs: list[int], size: int, count: int, threads: int) -> Callable[[], Any]:
    """The operator of `torch-sparse`, which PyG called before it had `pyg-lib`."""
    import torch_sparse  # noqa: F401
    from torch_geometric.utils import index_sort

    torch.set_num_threads(threads)
    data = load_arxiv()
    target, order = index_sort(data.edge_index[1])
    source = data.edge_index[0][order].contiguous()
    pointers = torch._convert_indices_from_coo_to_csr(target, data.num_nodes)
    times = draw_times(data)
    batches = shuffled_batches(data.train, size, 0)[:count]

    def run() -> dict[str, float]:
        nodes = edges = 0
        for seeds in batches:
            node, row, _, _ = torch.ops.torch_sparse.hetero_temporal_neighbor_sample(
                ["p"],
                [("p", "to", "p")],
                {"p__to__p": pointers},
                {"p__to__p": source},
                {"p": seeds},
                {"p__to__p": fan_outs},
                {"p": times},
                len(fan_outs),
                False,
                True,
            )
            nodes += len(node["p"])
            edges += len(row["p__to__p"])
        return {"nodes": nodes / count, "edges": edges / count}

    return run


def make_negatives(threads: int) -> Callable[[], Any]:
    """PyG's function: a target for each edge that makes no edge of it."""
    from torch_geometric.utils import structured_negative_sampling

    torch.set_num_threads(threads)
    data = load_arxiv()

    def run() -> dict[str, float]:
        drawn = structured_negative_sampling(data.edge_index, data.num_nodes)
        return {"edges": float(len(drawn[2]))}

    return run


ARMS = {
    "dgl": make_dgl,
    "pyg": make_pyg,
    "temporal": make_temporal,
    "weighted": make_weighted,
    "dropping": make_dropping,
    "negatives": make_negatives,
}
