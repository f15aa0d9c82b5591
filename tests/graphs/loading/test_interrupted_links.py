"""Ctrl-C at any line of an epoch over links arrives, ends the loader's threads, and the next epoch is right."""

from __future__ import annotations

import gc
import threading
import time

import pytest
import torch

from shorthaul.graphs import LinkLoader, NegativeSampler
from tests.graphs.sampled_graphs import random_graph
from tests.injected_interrupts import find_places, run_interrupted

EVERY = 23  # of the lines, in the quick tests
NODES, EDGES = 60, 300
THREADS = ("shorthaul sampling", "shorthaul gathering")


class LinkEpochs:
    """A loader of all edges with negatives, in batches that do not see what they predict."""

    def __init__(self, prefetch: int) -> None:
        self.graph = random_graph(NODES, EDGES, dtype=torch.int32).with_inverses()
        self.features = torch.arange(NODES).float().view(-1, 1)
        self.true_edges = set(
            zip(self.graph.source.tolist(), self.graph.target.tolist(), strict=True)
        )
        self.loader = LinkLoader(
            self.graph, self.features, torch.arange(EDGES), 100, [3, 2],
            negatives=NegativeSampler(self.graph, replaces="either"),
            leaves_out="edge_and_reverse", prefetch=prefetch,
        )  # fmt: skip

    def epoch(self) -> None:
        seen: list[int] = []
        for batch in self.loader:
            assert batch.edges is not None
            assert torch.equal(batch.features, self.features[batch.input_nodes.long()])
            ends = batch.seeds[batch.sources], batch.seeds[batch.targets]
            pairs = list(zip(*(each.tolist() for each in ends), strict=True))
            assert set(pairs[: batch.num_positives]) <= self.true_edges
            hidden = torch.cat([batch.edges, batch.edges + EDGES])
            assert not any(torch.isin(each.edges.long(), hidden).any() for each in batch.blocks)
            seen += batch.edges.tolist()
        assert seen == list(range(EDGES))

    def require_nothing_left(self, place: object) -> None:
        gc.collect()
        stop = time.monotonic() + 20
        while any(each.name in THREADS for each in threading.enumerate()):
            assert time.monotonic() < stop, place
            time.sleep(0.002)
        while self.loader._pool.in_use_bytes:
            assert time.monotonic() < stop, place
            time.sleep(0.002)


def interrupt_each_line(case: LinkEpochs, every: int) -> None:
    case.epoch()
    arrived = 0
    for place in find_places(case.epoch, "graphs/loading/", "graphs/sampling/")[::every]:
        arrived += run_interrupted(case.epoch, place)
        case.require_nothing_left(place)
        case.epoch()
    assert arrived > 3


@pytest.mark.parametrize("prefetch", [0, 2])
def test_some_lines(prefetch: int) -> None:
    interrupt_each_line(LinkEpochs(prefetch), EVERY)


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [0, 2])
def test_each_line(prefetch: int) -> None:
    interrupt_each_line(LinkEpochs(prefetch), 1)
