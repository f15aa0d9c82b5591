"""Ctrl-C at any line of an epoch arrives, ends the loader's threads, and the next epoch is right."""

from __future__ import annotations

import gc
import threading
import time

import pytest
import torch

import shorthaul as sh
from shorthaul.graphs import MiniBatchLoader, RelationalGraph
from tests.injected_interrupts import find_places, obeys_after, run_interrupted

EVERY = 13  # of the lines, in the quick tests
NODES = 300


class Epochs:
    """A loader over a graph whose features tell which node they belong to."""

    def __init__(self, directory, *, prefetch: int, is_on_disk: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        source, target = torch.randint(0, NODES, (2, 4 * NODES), generator=generator)
        self.graph = RelationalGraph.from_edges(source, target, num_nodes=NODES)
        self.features = torch.arange(NODES).float().view(-1, 1).repeat(1, 40)
        features = self.features
        if is_on_disk:
            sh.save_features(directory / "rows.npy", features, progress=False)
            features = sh.open(directory / "rows.npy", cache="belady", cache_bytes="16KiB")
        self.loader = MiniBatchLoader(
            self.graph, features, torch.arange(NODES), batch_size=64, fan_outs=[3, 3],
            prefetch=prefetch,
        )  # fmt: skip

    def epoch(self) -> None:
        count = 0
        for batch in self.loader:
            assert torch.equal(batch.features, self.features[batch.input_nodes])
            assert torch.equal(batch.labels, batch.seeds)
            count += len(batch.seeds)
        assert count == NODES

    def require_nothing_left(self, place: object = None) -> None:
        gc.collect()
        stop = time.monotonic() + 20
        while any(each.name in THREADS for each in threading.enumerate()):
            assert time.monotonic() < stop, place
            time.sleep(0.002)
        while self.loader._pool.in_use_bytes:
            assert time.monotonic() < stop, place
            time.sleep(0.002)


THREADS = ("shorthaul sampling", "shorthaul gathering")
KINDS = [(0, False), (2, False), (2, True)]


def interrupt_each_line(case: Epochs, every: int) -> None:
    case.epoch()
    arrived = 0
    for place in find_places(case.epoch, "graphs/loading/", "graphs/sampling/")[::every]:
        arrived += run_interrupted(case.epoch, place)
        case.require_nothing_left(place)
        case.epoch()
    assert arrived > 3


@pytest.mark.parametrize(("prefetch", "is_on_disk"), KINDS)
def test_some_lines(tmp_path, prefetch, is_on_disk):
    interrupt_each_line(Epochs(tmp_path, prefetch=prefetch, is_on_disk=is_on_disk), EVERY)


@pytest.mark.slow
@pytest.mark.parametrize(("prefetch", "is_on_disk"), KINDS)
def test_each_line(tmp_path, prefetch, is_on_disk):
    interrupt_each_line(Epochs(tmp_path, prefetch=prefetch, is_on_disk=is_on_disk), 1)


@pytest.mark.parametrize(("prefetch", "is_on_disk"), KINDS)
def test_signals_at_random_moments_all_arrive(tmp_path, prefetch, is_on_disk):
    case = Epochs(tmp_path, prefetch=prefetch, is_on_disk=is_on_disk)
    case.epoch()
    for delay in torch.rand(6, generator=torch.Generator().manual_seed(1)).tolist():
        assert obeys_after(0.05 * delay, case.epoch), "the interrupt was lost"
        case.require_nothing_left()
        case.epoch()
    case.require_nothing_left()
