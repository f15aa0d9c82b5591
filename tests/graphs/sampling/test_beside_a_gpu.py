"""Times and weights that lie in unified memory or on disk: the CPU reads them, where a GPU is too."""

from pathlib import Path
from typing import Any

import pytest
import torch

import shorthaul as sh
from shorthaul.graphs import LinkLoader, NegativeSampler, NeighborSampler, RelationalGraph
from tests.graphs.sampled_graphs import random_graph, same_samples
from tests.pretended_gpu import pretend_gpu

NODES, EDGES = 40, 300
COLUMNS = {
    "weights": torch.linspace(0.1, 2, EDGES),
    "edge_times": torch.arange(EDGES),
    "node_times": torch.arange(NODES) * 5,
}


def graph_in(place: str, folder: Path) -> tuple[RelationalGraph, dict[str, Any]]:
    """A graph, and its columns as samplers take them: plain, unified, or on disk by name."""
    graph = random_graph(NODES, EDGES, 2)
    if place == "plain":
        return graph, dict(COLUMNS)
    if place == "unified":
        return graph, {name: sh.unified(each) for name, each in COLUMNS.items()}
    edges = {name: COLUMNS[name] for name in ("weights", "edge_times")}
    nodes = {"node_times": COLUMNS["node_times"]}
    graph.with_data(nodes=nodes, edges=edges).save(folder)
    return RelationalGraph.open(folder), {name: name for name in COLUMNS}


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("place", ["unified", "disk"])
@pytest.mark.parametrize("name", [*COLUMNS])
def test_samples_by_weight_and_time_are_drawn_by_the_cpu(
    name: str, place: str, kernels: str, tmp_path: Path
) -> None:
    def sample(where: str) -> Any:
        graph, columns = graph_in(where, tmp_path)
        times = torch.tensor([100, 200]) if name == "edge_times" else None
        return NeighborSampler(graph, [3, 2], seed=5, **{name: columns[name]}).sample(
            [3, 7], number=1, times=times
        )

    expected = sample("plain")
    with sh.settings.override(kernels=kernels), pretend_gpu():
        found = sample(place)
    assert same_samples(found, expected) == ""


@pytest.mark.parametrize("place", ["unified", "disk"])
def test_links_have_the_times_of_their_edges(place: str, tmp_path: Path) -> None:
    def batches(where: str) -> list[Any]:
        graph, columns = graph_in(where, tmp_path)
        sampler = NeighborSampler(graph, [2], seed=5, edge_times=columns["edge_times"])
        loaders = [LinkLoader(graph, batch_size=100, fan_outs=sampler)]
        if where == "disk":
            loaders.append(LinkLoader(graph, batch_size=100, fan_outs=sampler, times="edge_times"))
        return [batch for loader in loaders for batch in loader]

    expected = batches("plain")
    with pretend_gpu():
        found = batches(place)
    assert found
    for number, batch in enumerate(found):
        wanted = expected[number % len(expected)]
        assert torch.equal(batch.input_nodes, wanted.input_nodes)
        assert torch.equal(batch.blocks[0].sources, wanted.blocks[0].sources)


@pytest.mark.parametrize("place", ["unified", "disk"])
def test_negatives_by_weight_and_time_are_drawn_by_the_cpu(place: str, tmp_path: Path) -> None:
    def sample(where: str) -> Any:
        graph, columns = graph_in(where, tmp_path)
        times = columns["node_times"]
        weights = torch.linspace(0.5, 1, NODES)
        weights = sh.unified(weights) if where == "unified" else weights
        sampler = NegativeSampler(graph, weights=weights, node_times=times, seed=3)
        return sampler.sample([1, 2], [3, 4], [0, 1], count=4, times=[90, 150])

    expected = sample("plain")
    with pretend_gpu():
        found = sample(place)
    assert torch.equal(found.sources, expected.sources)
    assert torch.equal(found.targets, expected.targets)
