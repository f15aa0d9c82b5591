"""How long do mini-batches take to a GPU: neighbors of three hops and the rows of their features?

Each arm brings the batches of the same seeds, whose neighbors every library draws in its own way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import shorthaul as sh
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.device_arm import Run, Way, compare_ways, find_device
from benchmarks.measuring.measure import not_compared
from shorthaul.graphs import MiniBatchLoader, NeighborSampler, RelationalGraph

FAN_OUTS = [15, 10, 5]
OURS = "shorthaul, drawn by the CPU"


def measure(answer: Answer) -> None:
    """A graph of random edges, as large as a citation graph."""
    device = find_device()
    nodes, edges, seeds, batch = (
        (300, 2_000, 20, 10) if answer.is_quick else (1_000_000, 20_000_000, 16_384, 1_024)
    )
    draw = torch.Generator().manual_seed(0)
    source, target = torch.randint(nodes, (2, edges), generator=draw)
    features = torch.rand(nodes, 128, generator=draw)
    wanted = torch.randperm(nodes, generator=draw)[:seeds]
    answer.state(graph=f"{nodes:,} nodes, {edges:,} random edges, 128 float32 features")
    compare_ways(
        answer,
        f"{seeds // batch} batches of {batch:,} seeds, {FAN_OUTS}",
        [
            *_list_ours(
                RelationalGraph.from_edges(source, target, num_nodes=nodes),
                features,
                wanted,
                batch,
                device,
            ),
            Way(
                "PyG with pyg-lib",
                lambda: _pyg(source, target, features, wanted, batch, device),
                seeds // batch,
            ),
            Way(
                "DGL GraphBolt, UVA",
                lambda: _graphbolt(source, target, features, wanted, batch, device),
                seeds // batch,
            ),
        ],
        baseline=OURS,
        same=not_compared,
        device=device,
    )


def _list_ours(
    graph: RelationalGraph,
    features: torch.Tensor,
    seeds: torch.Tensor,
    batch: int,
    device: torch.device,
) -> list[Way]:
    table = sh.unified(features)

    def loading(**how: Any) -> Callable[[], Run]:
        def make() -> Run:
            sampler = NeighborSampler(graph, FAN_OUTS, **how)
            loader = MiniBatchLoader(
                graph, table, seeds=seeds, batch_size=batch, fan_outs=sampler, device=device
            )
            return lambda: _consume(loader)

        return make

    events = len(seeds) // batch
    return [
        Way(OURS, loading(), events),
        Way("shorthaul, drawn by the GPU", loading(device=device), events),
        Way(
            "shorthaul, drawn by the GPU from a copy",
            loading(device=device, topology="copied"),
            events,
        ),
    ]


def _consume(loader: Any) -> None:
    for _ in loader:
        pass


def _pyg(
    source: torch.Tensor,
    target: torch.Tensor,
    features: torch.Tensor,
    seeds: torch.Tensor,
    batch: int,
    device: torch.device,
) -> Run:
    import pyg_lib  # noqa: F401  (PyG samples by it)
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    data = Data(x=features, edge_index=torch.stack([source, target]))
    loader = NeighborLoader(
        data, FAN_OUTS, input_nodes=seeds, batch_size=batch, num_workers=2, persistent_workers=True
    )

    def run() -> None:
        for each in loader:
            each.to(device)

    return run


def _graphbolt(
    source: torch.Tensor,
    target: torch.Tensor,
    features: torch.Tensor,
    seeds: torch.Tensor,
    batch: int,
    device: torch.device,
) -> Run:
    from dgl import graphbolt

    index = RelationalGraph.from_edges(source, target, num_nodes=len(features)).by_target()
    graph = graphbolt.fused_csc_sampling_graph(
        index.pointers.long(), index.sources.long()
    ).pin_memory_()
    feature = graphbolt.TorchBasedFeature(features.clone()).pin_memory_()
    store = graphbolt.BasicFeatureStore({("node", None, "x"): feature})
    pipe = graphbolt.ItemSampler(graphbolt.ItemSet(seeds, names="seeds"), batch_size=batch)
    pipe = pipe.copy_to(device).sample_neighbor(graph, FAN_OUTS)
    loader = graphbolt.DataLoader(pipe.fetch_feature(store, node_feature_keys=["x"]))
    return lambda: _consume(loader)


if __name__ == "__main__":
    answer_question(measure)
