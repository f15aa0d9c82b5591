"""Where samples are drawn: by this rank alone from a replicated topology, or with all ranks from a split one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

import torch

from shorthaul.distributed.parts import Parts
from shorthaul.distributed.ranks.line import Line
from shorthaul.distributed.ranks.wire import Wire
from shorthaul.distributed.ranks.worker import Worker
from shorthaul.distributed.topology.split_sampler import SplitSampler
from shorthaul.graphs import NeighborSample, NeighborSampler
from shorthaul.graphs.sampling.fan_outs import FanOut, read_fan_outs
from shorthaul.graphs.sampling.one_hop import OneHop
from shorthaul.graphs.sampling.streams import read_seed

FindSeeds = Callable[[], torch.Tensor]  # this rank's, in the thread that draws
Sampler = NeighborSampler | SplitSampler


class Drawing(Protocol):
    """Draws samples in a thread of its own, in the order in which they are submitted: the same on all ranks."""

    @property
    def is_shared(self) -> bool:
        """Whether ranks draw for each other, so that an error of one ends the drawing of all."""

    def submit(self, where: str, find_seeds: FindSeeds, number: int, /) -> Future[NeighborSample]:
        """Have a sample drawn; `where` is told in errors, `number` says which random numbers it gets."""

    def close(self) -> None:
        """Draw no more."""


def make_sampler(parts: Parts, fan_outs: Sequence[FanOut], seed: int) -> Sampler:
    """The sampler for the topology as the parts were opened; nothing is exchanged yet."""
    if parts.topology == "replicated":
        return NeighborSampler(parts.graph, fan_outs, seed=seed)
    graph = parts.described_graph
    hops = OneHop(
        graph.index_dtype, graph.num_nodes, read_fan_outs(graph, fan_outs), read_seed(seed)
    )
    return SplitSampler(parts.held_rows, parts.book, hops, graph.num_relations, parts.described)


def start_drawing(parts: Parts, sampler: Sampler) -> Drawing:
    """The thread for a sampler; all ranks start theirs, in the same order."""
    if isinstance(sampler, NeighborSampler):
        return LocalDrawing(sampler)
    return SplitDrawing(sampler, parts.make_line("neighbors of a loader"))


class LocalDrawing:
    """From the whole topology, which this rank maps."""

    is_shared = False

    def __init__(self, sampler: NeighborSampler) -> None:
        self._sampler, self._worker = sampler, Worker("drawing")

    def submit(self, _: str, find_seeds: FindSeeds, number: int, /) -> Future[NeighborSample]:
        """Have a sample drawn."""
        return self._worker.submit(lambda: self._sampler.sample(find_seeds(), number=number))

    def close(self) -> None:
        """End the thread."""
        self._worker.close(0)


class SplitDrawing:
    """From rows that the ranks hold, on a line of its own, so that features are exchanged at the same time."""

    is_shared = True

    def __init__(self, sampler: SplitSampler, line: Line) -> None:
        self._sampler, self._line = sampler, line
        self._rounds = itertools.count()

    def submit(self, where: str, find_seeds: FindSeeds, number: int, /) -> Future[NeighborSample]:
        """Have a sample drawn with all ranks."""
        round_number = next(self._rounds)

        def work(wire: Wire) -> NeighborSample:
            return self._sampler.sample(wire, find_seeds(), number, round_number)

        return self._line.submit(f"neighbors of {where}", work)

    def close(self) -> None:
        """End the thread and the process group."""
        self._line.close()
