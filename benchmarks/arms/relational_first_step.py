"""What compiling a layer with its backward takes, in a process of its own.

Run as `python -m benchmarks.arms.relational_first_step <layer> <batches>`; `SHORTHAUL_CACHE` says where
kernels are kept. Prints as JSON: seconds that the first step took longer than the next, the same of a
second layer of the same kind, and how many kernels were compiled for `batches` graphs of different sizes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

from benchmarks.arms.relational_arms import draw_graph
from benchmarks.arms.relational_cells import Cell, list_cells, make_run
from shorthaul.graphs import RelationalGraph
from shorthaul.relational.topology.topology import Topology

RELATIONS = 20
NOTHING_SECONDS = 1e-5  # a first step that took no longer than the others, as far as they can tell


def make_graph(number: int) -> RelationalGraph:
    """A graph of its own size, whose indexes are there."""
    graph = draw_graph(2000 + 37 * number, 400 + 11 * number, RELATIONS)
    ordered = Topology.of(graph).graph
    ordered.by_source()
    ordered.pairs("source")
    ordered.pairs("target")
    return graph


def find_cell(layer: str, graph: RelationalGraph) -> Cell:
    """A fresh layer."""
    return next(each for each in list_cells(graph) if each.layer == layer)


def count_kernels() -> int:
    """The kernels in the cache."""
    return len(list(Path(os.environ["SHORTHAUL_CACHE"]).rglob("kernel.so")))


def time_first_step(layer: str, graph: RelationalGraph) -> float:
    """Seconds that a fresh layer's first step takes longer than one of the next."""
    step = make_run(find_cell(layer, graph), torch.randn(graph.num_nodes, 64), training=True)
    seconds = []
    for _ in range(6):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return max(NOTHING_SECONDS, seconds[0] - min(seconds[1:]))


def main() -> None:
    """Time the first step of two layers, then train on many graphs."""
    layer, batches = sys.argv[1], int(sys.argv[2])
    graph = make_graph(0)
    before = count_kernels()
    first, again = time_first_step(layer, graph), time_first_step(layer, graph)
    cell = find_cell(layer, graph)
    started = time.perf_counter()
    for number in range(1, batches + 1):
        graph = make_graph(number)
        # The same layer on another graph: what `list_cells` calls is bound to its graph.
        cell.module(torch.randn(graph.num_nodes, 64, requires_grad=True), graph).sum().backward()
    took = time.perf_counter() - started
    made = {"first": first, "again": again, "kernels": count_kernels() - before}
    print(json.dumps(made | {"batch": took / max(1, batches)}))


if __name__ == "__main__":
    main()
