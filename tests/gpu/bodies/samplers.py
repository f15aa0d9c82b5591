"""Neighbors drawn by the device are those that the CPU draws."""

from __future__ import annotations

import pytest
import torch

import shorthaul as sh
from shorthaul.errors import SamplingError
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.graphs import NeighborSampler, RelationalGraph
from shorthaul.graphs.sampling.device.device_sampler import WHAT
from tests.gpu.suites import body, small_graph
from tests.graphs.sampled_graphs import same_samples


def _require_same(graph: RelationalGraph, device: torch.device, **how: object) -> None:
    near = NeighborSampler(graph, seed=11, **how)
    seeds = torch.tensor([5, 0, 5, 11, 3])
    for topology in ("mapped", "copied"):
        far = NeighborSampler(graph, seed=11, device=device, topology=topology, **how)
        for number, given in enumerate((seeds, seeds.to(device), seeds[:0])):
            got = far.sample(given, number=number)
            assert got.input_nodes.device == got.seed_rows.device == device
            expected = near.sample(given.cpu(), number=number)
            assert same_samples(got.to("cpu"), expected) == ""


@body
def uniform_samples_are_the_same_bits(device: torch.device) -> None:
    noted = set(taken_fallbacks())
    for dtype in (torch.int32, torch.int64):
        plain = small_graph(edges=200)
        graph = RelationalGraph.from_edges(
            plain.source, plain.target, num_nodes=12, index_dtype=dtype
        )
        _require_same(graph, device, fan_outs=[5, 2, -1])
        _require_same(graph, device, fan_outs=[3, 40], replace=True, resample=False)
    assert not [each for each in set(taken_fallbacks()) - noted if each.what == WHAT]


@body
def other_samples_are_drawn_by_the_cpu_and_brought(device: torch.device) -> None:
    graph, weights = small_graph(), torch.rand(40)
    for how in ({"weights": weights}, {"strategy": "labor"}, {"disjoint": True}):
        _require_same(graph, device, fan_outs=[2], **how)
    _require_same(graph, device, fan_outs=[{0: 1, 1: 2, 2: -1}])
    near, far = (NeighborSampler(graph, [-1], device=where) for where in (None, device))
    for exclude in ([0], torch.arange(7)):
        expected = near.sample([1, 2], exclude=exclude)
        assert same_samples(far.sample([1, 2], exclude=exclude).to("cpu"), expected) == ""


@body
def more_edges_than_can_be_counted_are_refused(device: torch.device) -> None:
    plain = small_graph()
    graph = RelationalGraph.from_edges(
        plain.source, plain.target, num_nodes=12, index_dtype=torch.int32
    )
    sampler = NeighborSampler(graph, [2**31], replace=True, device=device)
    with pytest.raises(SamplingError, match=r"more edges than torch.int32 can count"):
        sampler.sample(torch.arange(12))


@body
def topology_is_read_where_it_lies(device: torch.device) -> None:
    graph, seeds = small_graph(edges=200), torch.arange(12)
    with sh.meter() as moved:
        NeighborSampler(graph, [3], device=device).sample(seeds)
    copied = [each for (_, _, why), each in moved.moved.items() if why == "topology copied"]
    assert not copied
    with sh.meter() as moved:
        sampler = NeighborSampler(graph, [3], device=device, topology="copied")
        for _ in range(2):
            sampler.sample(seeds)
    index = graph.by_target()
    whole = index.pointers.nbytes + index.sources.nbytes
    assert moved.bytes_between("memory", "cuda", "topology copied") == whole
