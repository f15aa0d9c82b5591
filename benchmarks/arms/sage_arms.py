"""GraphSAGE on ogbn-arxiv with shorthaul, and with a memory map: arms for `bench_sage_epoch.py`.

An epoch trains a fresh model on every training node once, so that each batch is made of nodes that the
model has not learnt from: the accuracy on the last third of them is what arms are compared by.

The table on disk is larger than memory shall be: every node of the graph gets one of `SPREAD` times as
many rows, at random, and the file has all of them. A limit is a cgroup that somebody made: in the folder
that SHORTHAUL_BENCH_CGROUP names, `disk` and `memmap` for the arms of that name, so that neither takes
memory from the other. A process joins its own before it opens anything.
"""

from __future__ import annotations

import itertools
import mmap
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

if str(Path(__file__).parents[2]) not in sys.path:  # served by `arm_server.py`, from its own folder
    sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.peers.arxiv import CLASSES, Arxiv, load_arxiv, shuffle, start_alike
from shorthaul.graphs import Block, MiniBatchLoader, NeighborSampler, RelationalGraph
from shorthaul.tensors import open as open_table

SIZE, FAN_OUTS, WIDTH, RATE = 1024, [15, 10, 5], 64, 3e-3
SPREAD = 16
CGROUP = "SHORTHAUL_BENCH_CGROUP"


class SAGE(nn.Module):
    """What a node is, and the mean of what its sampled neighbors are."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.own = nn.ModuleList(nn.Linear(*pair) for pair in pairs)
        self.neighbors = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in pairs)

    def forward(self, blocks: list[Block], x: torch.Tensor) -> torch.Tensor:
        """Scores of each class, for each seed."""
        for number, block in enumerate(blocks):
            x = x.relu() if number else x
            own, neighbors = x[: block.num_targets], block.reduce(x, "mean")
            x = self.own[number](own) + self.neighbors[number](neighbors)
        return x


def train(
    batches: Iterable[tuple[Any, torch.Tensor, torch.Tensor]], seed: int = 0
) -> dict[str, float]:
    """Train on (blocks, features, labels); the accuracy on the last third, before learning it."""
    model = SAGE(128, WIDTH, WIDTH, CLASSES)
    pairs = zip(model.own, model.neighbors, strict=True)
    start_alike(model, [(own.weight, heard.weight) for own, heard in pairs], seed)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    right: list[float] = []
    for blocks, features, labels in batches:
        scores = model(blocks, features)
        nn.functional.cross_entropy(scores, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        right.append(float((scores.detach().argmax(1) == labels).float().mean()))
    last = right[-max(1, len(right) // 3) :]
    return {"accuracy": sum(last) / len(last)}


def make_graph(data: Arxiv, rows: torch.Tensor | None = None) -> RelationalGraph:
    """The graph; with `rows`, its nodes renumbered to the rows that they have in a larger table."""
    if rows is None:
        graph = RelationalGraph.from_edge_index(data.edge_index, num_nodes=data.num_nodes)
    else:
        edges = rows[data.edge_index]
        graph = RelationalGraph.from_edge_index(edges, num_nodes=SPREAD * data.num_nodes)
    graph.by_target()
    return graph


def make_memory(
    count: int, threads: int, resample: bool = False, is_trained: bool = True, seed: int = 0
) -> Callable[[], Any]:
    """An epoch of `count` batches, features in memory; without training, its preparation alone.

    The seed fixes the order of the nodes and the model's start, as in every library.
    """
    torch.set_num_threads(threads)
    data = load_arxiv()
    loader = MiniBatchLoader(
        make_graph(data),
        data.features,
        data.labels,
        shuffle(data.train, seed)[: count * SIZE],
        SIZE,
        FAN_OUTS,
        resample=resample,
        seed=seed,
    )
    return lambda: _run(((b.blocks, b.features, b.labels) for b in loader), is_trained, seed)


def make_disk(
    count: int, threads: int, path: str, cache: str, is_limited: bool
) -> Callable[[], Any]:
    """An epoch of `count` batches, features in the file at `path` with a cache of that size."""
    if is_limited:
        limit_memory("disk", Path(path).stat().st_size)
    torch.set_num_threads(threads)
    data, rows = load_arxiv(), spread_rows()
    table = open_table(path, cache="belady", cache_bytes=cache)
    labels = torch.zeros(table.shape[0], dtype=torch.int64)
    labels[rows] = data.labels
    loader = MiniBatchLoader(
        make_graph(data, rows),
        table,
        labels,
        rows[shuffle(data.train, 0)[: count * SIZE]],
        SIZE,
        FAN_OUTS,
        resample=False,
    )
    return lambda: _run(((b.blocks, b.features, b.labels) for b in loader), True)


def make_memmap(count: int, threads: int, path: str, is_limited: bool) -> Callable[[], Any]:
    """The same with numpy's memory map, advised that it is read at random."""
    if is_limited:
        limit_memory("memmap", Path(path).stat().st_size)
    torch.set_num_threads(threads)
    data, rows = load_arxiv(), spread_rows()
    graph = make_graph(data, rows)
    labels = torch.zeros(graph.num_nodes, dtype=torch.int64)
    labels[rows] = data.labels
    sampler = NeighborSampler(graph, FAN_OUTS, resample=False)

    def batches() -> Iterator[tuple[Any, torch.Tensor, torch.Tensor]]:
        table = np.load(path, mmap_mode="r")  # anew each time: pages that are mapped stay in memory
        table._mmap.madvise(mmap.MADV_RANDOM)
        for seeds in rows[shuffle(data.train, 0)[: count * SIZE]].split(SIZE):
            sample = sampler.sample(seeds)
            features = torch.from_numpy(table[sample.input_nodes.numpy()])
            yield sample.blocks, features, labels[sample.seeds.long()]

    return lambda: _run(batches(), True)


def _run(
    batches: Iterable[tuple[Any, Any, Any]], is_trained: bool, seed: int = 0
) -> dict[str, float]:
    if is_trained:
        return train(batches, seed)
    return {"batches": float(sum(1 for _ in batches))}


def spread_rows() -> torch.Tensor:
    """The row that each node has in the larger table: any, but never the same for two."""
    nodes = load_arxiv().num_nodes
    order = torch.randperm(SPREAD * nodes, generator=torch.Generator().manual_seed(1))
    return order[:nodes].contiguous()


def write_spread_table(path: Path, features: torch.Tensor) -> None:
    """The larger table, written in parts."""
    nodes, width = features.shape
    table = np.lib.format.open_memmap(path, "w+", np.float32, (SPREAD * nodes, width))
    source = np.full(SPREAD * nodes, -1, np.int64)
    source[spread_rows().numpy()] = np.arange(nodes)
    for start in range(0, len(source), nodes):
        part = source[start : start + nodes]
        table[start : start + nodes] = np.where(part[:, None] >= 0, features.numpy()[part], 0)
    table.flush()


def limit_memory(arm: str, table_bytes: int) -> None:
    """Join the cgroup of the arm, and see that it holds less than the table."""
    limit = read_limit(arm)
    if limit == "max" or int(limit) >= table_bytes:
        raise ValueError(f"`{arm}` may use {limit} bytes, but the table has only {table_bytes:,}")
    with open(Path(os.environ[CGROUP]) / arm / "cgroup.procs", "w") as processes:
        processes.write(str(os.getpid()))


def read_limit(arm: str) -> str:
    """The bytes that the cgroup of the arm allows, or `max`."""
    folder = Path(os.environ[CGROUP]) / arm
    limits = [folder / name for name in ("memory.max", "memory.limit_in_bytes")]
    return next(each.read_text().strip() for each in limits if each.exists())


ARMS = {"memory": make_memory, "disk": make_disk, "memmap": make_memmap}
