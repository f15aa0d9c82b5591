"""Inclusion probabilities are near how often sampled batches have a node."""

from __future__ import annotations

import pytest
import torch

from shorthaul.errors import SeedRangeError
from shorthaul.graphs import NeighborSampler, RelationalGraph
from shorthaul.graphs.inclusion.inclusion import estimate_inclusion, estimate_inclusion_of
from shorthaul.graphs.inclusion.target_rows import TargetRows
from tests.distributed.part_folders import drawn_graph


def test_they_tell_which_rows_batches_have() -> None:
    ends = torch.randint(400, (2, 2400), generator=torch.Generator().manual_seed(1))
    graph = RelationalGraph.from_edge_index(ends, num_nodes=400)
    seeds, fan_outs, size, batches = torch.arange(0, 400, 4), [3, 2], 10, 400
    estimated = estimate_inclusion_of(TargetRows(graph, 100), seeds, fan_outs, size)
    sampler = NeighborSampler(graph, fan_outs, seed=5)
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(400)
    for _ in range(batches):
        drawn = seeds[torch.randperm(100, generator=generator)[:size]]
        counts[sampler.sample(drawn).input_nodes.long()] += 1
    rates = counts.double() / batches
    assert abs(float(estimated.sum() / rates.sum()) - 1) < 0.1
    assert float(torch.corrcoef(torch.stack([estimated, rates]))[0, 1]) > 0.95


def test_all_neighbors_of_certain_seeds_are_certain() -> None:
    graph = drawn_graph(nodes=50, edges=100)
    assert estimate_inclusion(graph, None, [-1], 50).min() > 1 - 1e-9


def test_graphs_on_disk_and_in_memory_say_the_same_and_seeds_are_looked_at(tmp_path) -> None:
    graph = drawn_graph(nodes=50, edges=400)
    graph.save(tmp_path)
    opened = RelationalGraph.open(tmp_path)
    expected = estimate_inclusion(graph, torch.arange(10), [3, 2], 4)
    assert torch.equal(estimate_inclusion(opened, list(range(10)), [3, 2], 4), expected)
    with pytest.raises(SeedRangeError, match="seed 50 at position 0"):
        estimate_inclusion(graph, [50])
