"""Calls large enough for PyTorch's own operators to use its threads, in a forked child that has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import shorthaul as sh
from shorthaul.graphs import LinkLoader, MiniBatchLoader, NegativeSampler, NeighborSampler
from tests.matrix import surroundings
from tests.matrix.operation import Tensors, random_numbers, random_tensor
from tests.matrix.surroundings import ChildFailed, after_fork

# From 32,768 values on PyTorch's pointwise operators are parallel, from fewer on some others.
NODES, EDGES, SEEDS = 50_000, 200_000, 40_000
Prepare = Callable[[Path], Callable[[], Any]]


def make_graph() -> sh.RelationalGraph:
    """One that is made in the parent, its indexes are not."""
    ends = (random_numbers(NODES, EDGES, seed=each) for each in (1, 2))
    return sh.RelationalGraph.from_edges(*ends, num_nodes=NODES)


def _made(_: Path) -> Callable[[], Any]:
    ends = [random_numbers(NODES, EDGES, seed=each) for each in (1, 2)]

    def run() -> Any:
        graph = sh.RelationalGraph.from_edges(*ends, num_nodes=NODES)
        return graph.by_target(), graph.by_source(), graph.by_relation(), graph.pairs("source")

    return run


def _saved(folder: Path) -> Callable[[], Any]:
    graph = make_graph()

    def run() -> Any:
        place = folder / "graph"
        graph.save(place, ["target"])
        return sh.RelationalGraph.open(place, in_memory=True).by_target()

    return run


def _typed(_: Path) -> Callable[[], Any]:
    edges = torch.stack([random_numbers(NODES, EDGES, seed=each) for each in (1, 2)])
    counts = {"a": NODES, "b": NODES}
    return lambda: sh.RelationalGraph.from_typed_edges({("a", "to", "b"): edges}, counts)


def _sampled(**options: Any) -> Prepare:
    def prepare(_: Path) -> Callable[[], Any]:
        graph, seeds = make_graph(), torch.arange(SEEDS)
        given = {name: each() if callable(each) else each for name, each in options.items()}
        return lambda: NeighborSampler(graph, [3, 2], **given).sample(seeds).blocks

    return prepare


def _negatives(**options: Any) -> Prepare:
    def prepare(_: Path) -> Callable[[], Any]:
        graph, edges = make_graph(), torch.arange(EDGES // 2)
        return lambda: NegativeSampler(graph, **options).sample_edges(edges, count=2)

    return prepare


def _loaded(prefetch: int) -> Prepare:
    def prepare(_: Path) -> Callable[[], Any]:
        graph, x, seeds = make_graph(), random_tensor(NODES, 4), torch.arange(SEEDS)
        labels = random_numbers(4, NODES)
        return lambda: list(
            MiniBatchLoader(graph, x, labels, seeds, 35_000, [3], shuffle=True, prefetch=prefetch)
        )

    return prepare


def _linked(prefetch: int) -> Prepare:
    def prepare(_: Path) -> Callable[[], Any]:
        graph, x = make_graph(), random_tensor(NODES, 4)

        def run() -> Any:
            loader = LinkLoader(
                graph,
                x,
                batch_size=120_000,
                fan_outs=[2],
                negatives=NegativeSampler(graph, exponent=0.75),
                leaves_out="edge",
                shuffle=True,
                prefetch=prefetch,
            )
            return list(loader)

        return run

    return prepare


def _rows(folder: Path) -> Callable[[], Any]:
    x, ids = random_tensor(NODES, 4), random_numbers(NODES, 100_000)
    weight, rows = random_tensor(3, 4), random_tensor(100_000, 4)
    pointers = torch.arange(0, 100_001, 10)

    def run() -> Any:
        u = sh.unified(x)
        on_disk = sh.open(sh.save_features(folder / "x.npy", x, progress=False).path)
        u.scatter_(ids, rows)
        found = [
            (each[ids], each.gather_reduce(pointers, ids), each.gather_linear(ids, weight))
            for each in (u, on_disk)
        ]
        small = sh.save_features(folder / "y.safetensors", x, quantize="int8", progress=False)
        return found, sh.open(small.path)[ids]

    return run


def _trained(make: Callable[[], torch.nn.Module], *shape: int, has_edges: bool) -> Prepare:
    """Forward, backward and a step: products of PyTorch's around ours, and between our calls."""

    def prepare(_: Path) -> Callable[[], Any]:
        layer, x = make(), random_tensor(*shape)
        ends = torch.stack([random_numbers(NODES, EDGES, seed=each) for each in (1, 2)])
        more = (ends, random_numbers(3, EDGES)) if has_edges else ()
        optimizer = torch.optim.AdamW(layer.parameters())

        def run() -> Any:
            layer(x, *more).square().mean().backward()
            optimizer.step()
            return layer

        return run

    return prepare


def _offloaded(folder: Path) -> Callable[[], Any]:
    layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    x = random_tensor(4096, 256)

    def run() -> Any:
        with sh.offload_activations(folder, minimum_bytes="64KiB", budget="6MiB") as offload:
            for _ in range(2):
                layers(x).square().mean().backward()
        return offload.report().counts.offloaded > 0 or None

    return run


PREPARED: dict[str, Prepare] = {
    "RGCNConv": _trained(lambda: sh.relational.RGCNConv(16, 16, 3), NODES, 16, has_edges=True),
    "RGATConv": _trained(lambda: sh.relational.RGATConv(16, 16, 3), NODES, 16, has_edges=True),
    "Conv2d": _trained(
        lambda: sh.Conv2d(16, 32, 3, padding_mode="reflect", padding=1),
        4,
        16,
        64,
        64,
        has_edges=False,
    ),
    "offload_activations": _offloaded,
    "from_edges": _made,
    "from_typed_edges": _typed,
    "a saved graph": _saved,
    "rows": _rows,
    "NeighborSampler": _sampled(),
    "NeighborSampler, each neighbor once": _sampled(resample=False),
    "NeighborSampler, labor": _sampled(strategy="labor"),
    "NeighborSampler, weighted": _sampled(
        strategy="weighted", weights=lambda: random_tensor(EDGES).abs()
    ),
    "NeighborSampler, disjoint": _sampled(disjoint=True),
    "NeighborSampler, by time": _sampled(
        strategy="last",
        node_times=lambda: random_numbers(99, NODES),
        edge_times=lambda: random_numbers(99, EDGES),
    ),
    "NegativeSampler": _negatives(),
    "NegativeSampler, by degree": _negatives(exponent=0.75, among="relation", replaces="both"),
    "MiniBatchLoader": _loaded(0),
    "MiniBatchLoader ahead": _loaded(2),
    "LinkLoader": _linked(0),
    "LinkLoader ahead": _linked(2),
}


@pytest.mark.parametrize("name", PREPARED)
def test_a_large_call_in_a_forked_child(name: str, tmp_path: Path) -> None:
    run = PREPARED[name](tmp_path)

    def work() -> Tensors:
        assert run() is not None
        return {"threads": torch.tensor(torch.get_num_threads())}

    assert after_fork(work, tmp_path)["threads"] == 1


def test_what_hangs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "LONGEST_CHILD_SECONDS", 1.0)
    with pytest.raises(ChildFailed, match="hangs"):
        after_fork(lambda: {"out": torch.ones(1 << 17).sort().values}, tmp_path)
