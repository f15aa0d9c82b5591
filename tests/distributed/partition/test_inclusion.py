"""Inclusion probabilities are near how often sampled batches have a node."""

from __future__ import annotations

import torch

from shorthaul.distributed.partition.inclusion import estimate_inclusion
from shorthaul.distributed.partition.target_rows import TargetRows
from shorthaul.graphs import NeighborSampler, RelationalGraph
from tests.distributed.part_folders import drawn_graph


def test_they_tell_which_rows_batches_have() -> None:
    ends = torch.randint(400, (2, 2400), generator=torch.Generator().manual_seed(1))
    graph = RelationalGraph.from_edge_index(ends, num_nodes=400)
    seeds, fan_outs, size, batches = torch.arange(0, 400, 4), [3, 2], 10, 400
    estimated = estimate_inclusion(TargetRows(graph, 100), seeds, fan_outs, size)
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
    seeds = torch.arange(50)
    assert estimate_inclusion(TargetRows(graph), seeds, [-1], 50).min() > 1 - 1e-9
