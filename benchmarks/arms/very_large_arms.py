"""GraphSAGE on a graph and features that lie on disk: arms for `bench_very_large_graph.py`.

A run trains `count` batches, the next of a shuffled order of all seeds, and tells what they read. The model
goes on where it was: only its losses would show that.
"""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

if str(Path(__file__).parents[2]) not in sys.path:  # served by `arm_server.py`, from its own folder
    sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.arms.sage_arms import FAN_OUTS, RATE, SAGE, SIZE, WIDTH
from shorthaul.graphs import MiniBatchLoader, NeighborSampler, RelationalGraph
from shorthaul.meter import meter
from shorthaul.tensors import open as open_table

CLASSES = 172


class Training:
    """A model, its optimizer, and the seeds in the order of an epoch."""

    def __init__(self, folder: str, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.folder = Path(folder)
        self.labels = open_table(self.folder / "labels.npy")
        seeds = open_table(self.folder / "seeds.npy")[:].cpu()
        generator = torch.Generator().manual_seed(0)
        self.order = seeds[torch.randperm(len(seeds), generator=generator)]
        self.at = 0
        features = open_table(self.folder / "features.npy")
        self.row_bytes = features.shape[1] * features.dtype.itemsize
        self.model = SAGE(features.shape[1], WIDTH, WIDTH, CLASSES)
        self.optimizer = torch.optim.Adam(self.model.parameters(), RATE)

    def next_seeds(self, count: int) -> torch.Tensor:
        """The seeds of the next `count` batches; after the last come the first again."""
        wanted = torch.arange(self.at, self.at + count * SIZE) % len(self.order)
        self.at = int(wanted[-1]) + 1
        return self.order[wanted]

    def train(
        self, batches: Iterable[tuple[Any, torch.Tensor, torch.Tensor, int]]
    ) -> dict[str, float]:
        """Train on (blocks, features, labels, input rows)."""
        started, rows, count, loss = time.perf_counter(), 0, 0, 0.0
        with meter() as measured:
            for blocks, features, labels, inputs in batches:
                value = nn.functional.cross_entropy(self.model(blocks, features.float()), labels)
                value.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                rows, count, loss = rows + inputs, count + 1, value.item()
        return {
            "batches": count,
            "input_rows": rows,
            "ideal_bytes": rows * self.row_bytes,
            "read_bytes": measured.read_bytes,
            "seconds": time.perf_counter() - started,
            "loss": loss,
        }


def make_disk(folder: str, count: int, threads: int, cache: str, mapped: bool) -> Callable[[], Any]:
    """Our loader: features by requests, the topology mapped or by requests too."""
    training = Training(folder, threads)
    graph = RelationalGraph.open(training.folder / "graph", mapped=mapped)
    features = open_table(training.folder / "features.npy")

    def run() -> dict[str, float]:
        before = features.stats()
        loader = MiniBatchLoader(
            graph,
            features,
            training.labels,
            training.next_seeds(count),
            SIZE,
            FAN_OUTS,
            cache=cache,
        )
        found = training.train(
            (each.blocks, each.features, each.labels, len(each.input_nodes)) for each in loader
        )
        now = features.stats()
        hits, misses = now.hits - before.hits, now.misses - before.misses
        found["feature_bytes"] = now.read_bytes - before.read_bytes
        found["hit_share"] = hits / max(1, hits + misses)
        return found

    return run


def make_memmap(folder: str, count: int, threads: int) -> Callable[[], Any]:
    """The same with numpy's memory map of the features, advised that it is read at random."""
    training = Training(folder, threads)
    graph = RelationalGraph.open(training.folder / "graph", mapped=True)
    sampler = NeighborSampler(graph, FAN_OUTS)
    table = np.load(training.folder / "features.npy", mmap_mode="r")
    table._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]

    def batches() -> Iterator[tuple[Any, torch.Tensor, torch.Tensor, int]]:
        for seeds in training.next_seeds(count).split(SIZE):
            sample = sampler.sample(seeds)
            features = torch.from_numpy(table[sample.input_nodes.numpy()])
            labels = training.labels[sample.seeds.long()].cpu()
            yield sample.blocks, features, labels, len(sample.input_nodes)

    return lambda: training.train(batches())


ARMS = {"disk": make_disk, "memmap": make_memmap}
