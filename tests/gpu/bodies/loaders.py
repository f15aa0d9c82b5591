"""Mini-batches and links on a device are those of the CPU."""

from __future__ import annotations

import torch

import shorthaul as sh
from shorthaul.graphs import LinkLoader, MiniBatchLoader, NeighborSampler, RelationalGraph
from tests.gpu.suites import CLOSE, body, small_graph


@body
def batches_are_whole_on_whatever_stream_takes_them(device: torch.device) -> None:
    graph, plain = small_graph(), torch.randn(12, 100)
    features = sh.unified(plain)
    stream = torch.cuda.Stream(device)
    for _ in range(5):
        with torch.cuda.stream(stream):
            loader = MiniBatchLoader(
                graph, features, batch_size=3, fan_outs=[2], device=device, prefetch=2
            )
            for batch in loader:
                seen = batch.features + 0
                assert torch.equal(seen.cpu(), plain[batch.input_nodes.cpu().long()])
            for links in LinkLoader(graph, batch_size=20, fan_outs=[2], device=device):
                assert links.labels.device == links.sources.device == device


def _require_same_batches(got: object, expected: object, device: torch.device) -> None:
    """Everything that a step reads, on the device, and what the CPU's batch has."""
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one.features.cpu(), other.features)
        assert torch.equal(one.labels.cpu(), other.labels)
        for mine, yours in zip(one.blocks, other.blocks, strict=True):
            for name in ("source_nodes", "pointers", "sources", "positions", "relations", "edges"):
                tensor = getattr(mine, name)
                assert tensor.device == device, name
                assert torch.equal(tensor.cpu(), getattr(yours, name)), name


@body
def batches_are_those_of_the_cpu_whoever_draws_them(device: torch.device) -> None:
    graph, labels = small_graph(), torch.arange(12)
    features = sh.unified(torch.randn(12, 8))

    def loader(where: object, prefetch: int, **how: object) -> MiniBatchLoader:
        sampler = NeighborSampler(graph, [2, -1], seed=3, **how)
        return MiniBatchLoader(
            graph,
            features,
            labels,
            batch_size=5,
            fan_outs=sampler,
            shuffle=True,
            prefetch=prefetch,
            device=where,
        )

    for prefetch in (0, 2):
        for how in ({}, {"device": device}, {"device": device, "topology": "copied"}):
            for _ in range(2):
                _require_same_batches(loader(device, prefetch, **how), loader("cpu", 0), device)


@body
def a_default_device_changes_no_batch(device: torch.device) -> None:
    graph, x, labels = small_graph(), torch.randn(12, 8), torch.arange(12)
    how = {"batch_size": 5, "fan_outs": [2], "shuffle": True}
    expected = [*MiniBatchLoader(graph, x, labels, **how)]
    links = [*LinkLoader(graph, x, **how)]
    torch.set_default_device(device)
    try:
        for where in (None, device):
            for got, wanted in zip(
                MiniBatchLoader(graph, x, labels, device=where, **how), expected, strict=True
            ):
                assert got.features.device == (device if where else torch.device("cpu"))
                assert torch.equal(got.features.cpu(), wanted.features)
                assert torch.equal(got.labels.cpu(), wanted.labels)
            for got, wanted in zip(LinkLoader(graph, x, device=where, **how), links, strict=True):
                assert torch.equal(got.features.cpu(), wanted.features)
                assert torch.equal(got.labels.cpu(), wanted.labels)
    finally:
        torch.set_default_device(None)


@body
def links_are_those_of_the_cpu_whoever_draws_their_neighbors(device: torch.device) -> None:
    graph, x = small_graph(), sh.unified(torch.randn(12, 8))
    for leaves_out in (None, "edge"):
        near, far = (
            LinkLoader(
                graph,
                x,
                batch_size=15,
                fan_outs=NeighborSampler(graph, [2], seed=1, device=where),
                leaves_out=leaves_out,
                device=where,
            )
            for where in (None, device)
        )
        for got, expected in zip(far, near, strict=True):
            for name in ("sources", "targets", "labels", "features", "relations", "seeds"):
                assert getattr(got, name).device == device, name
                assert torch.equal(getattr(got, name).cpu(), getattr(expected, name)), name


@body
def workers_samples_are_completed_on_the_device(device: torch.device) -> None:
    graph, x = small_graph(), torch.randn(12, 8)
    sampler = NeighborSampler(graph, [2], seed=3, device=device)
    loader = MiniBatchLoader(graph, x, batch_size=5, fan_outs=sampler, device=device)
    samples = torch.utils.data.DataLoader(loader.samples(), batch_size=None)
    for batch in map(loader.complete, samples):
        assert torch.equal(batch.features.cpu(), x[batch.input_nodes.cpu().long()])


@body
def typed_batches_feed_typed_layers(device: torch.device) -> None:
    relation, back = ("a", "to", "b"), ("b", "back", "a")
    draw = torch.Generator().manual_seed(0)
    edges = {each: torch.randint(6, (2, 20), generator=draw) for each in (relation, back)}
    graph = RelationalGraph.from_typed_edges(edges)
    weights = torch.randn(graph.num_edges, 3)
    graph = graph.with_data(edges={"weight": weights})
    x = {name: torch.randn(len(graph.nodes_of(name)), 8) for name in "ab"}
    layer = sh.relational.HeteroConv({each: sh.relational.SAGEConv((8, 8), 4) for each in edges})
    found = []
    for where in ("cpu", device):
        sampler = NeighborSampler(graph, [-1], device=None if where == "cpu" else where)
        (batch,) = MiniBatchLoader(
            graph, x, seeds=("a", [0, 1, 2]), fan_outs=sampler, edge_data="weight", device=where
        )
        (own,) = batch.edge_data
        assert torch.equal(own["weight"].cpu(), weights[batch.blocks[0].edges.cpu().long()])
        typed = batch.to_hetero()
        (block,) = typed.blocks
        out = layer.to(where)(block.pairs(typed.x_dict), block.edge_index_dict)
        found.append(typed.seeds(out))
    torch.testing.assert_close(found[1].cpu(), found[0], **CLOSE)
