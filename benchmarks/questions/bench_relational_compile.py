"""How long does it take to compile a relational layer with its backward, and to index FB15k-237?

Cold: a new process and an empty cache, from a fresh layer to the end of its first training step, less a
later step. On disk: a new process that finds the kernels. In the process: another layer of the same
kind. Kernels are counted over 100 graphs of different sizes. Indexes are all five of a graph: by
relation, target and source, and the pairs of both ends.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.arms.relational_graphs import load_graph
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, not_compared, same_bits
from benchmarks.measuring.told import Told, ask_process
from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.index import kernels as index_kernels
from shorthaul.graphs.index import plain as plain_indexes
from shorthaul.relational.topology.topology import Topology

LAYERS = ("RGCN", "RGAT 1 head")
BATCHES = 100


def run_first_step(layer: str, cache: Path, batches: int) -> dict[str, float]:
    """What `relational_first_step` says, with kernels kept in `cache`."""
    variables = {"SHORTHAUL_CACHE": str(cache)}
    return ask_process("relational_first_step", layer, str(batches), variables=variables)


def measure_compiling(answer: Answer, layer: str) -> None:
    cold, disk, again = [], [], []
    figures: dict[str, float] = {}
    for number in range(answer.rounds):
        with tempfile.TemporaryDirectory() as directory:
            first = run_first_step(layer, Path(directory), 0)
            batches = BATCHES if number == 0 else 0
            second = run_first_step(layer, Path(directory), batches)
            if batches:
                figures = {
                    "kernels": first["kernels"] + second["kernels"],
                    "different_graphs": batches,
                }
        cold.append(first["first"])
        disk.append(second["first"])
        again += [first["again"]]
    arms = [
        Told("cold: empty cache", cold),
        Told("kernels on disk", disk),
        Told("in the process", again),
    ]
    answer.compare(
        f"compiling {layer} with its backward",
        arms,
        baseline=arms[0].name,
        same=not_compared,
        figures={arms[0].name: figures},
    )


def build_indexes(builder: Any, graph: RelationalGraph) -> list[torch.Tensor]:
    """All five indexes of a graph, as tensors."""
    found = builder.sort_relations(graph.relation, graph.source, graph.target, graph.num_relations)
    pointers, edges, sources, targets = found
    made = [*found]
    for keys, ends in ((targets, sources), (sources, targets)):
        rows = builder.sort_rows(keys, ends, edges, pointers, graph.num_nodes)
        pairs = builder.find_pairs(rows.pointers, rows.relations, rows.edges, pointers)
        made += [*rows, *pairs]
    return made


def measure_indexes(answer: Answer, name: str) -> None:
    graph = load_graph(name)

    def build_topology() -> None:
        fresh = RelationalGraph(
            graph.node_types,
            graph.nodes_per_type,
            graph.relations,
            graph.source,
            graph.target,
            graph.relation,
        )
        ordered = Topology.of(fresh).graph
        ordered.by_source()
        ordered.pairs("source")
        ordered.pairs("target")

    answer.compare(
        f"indexes of {name}, {graph.num_edges:,} edges",
        [
            Arm("plain PyTorch", lambda: build_indexes(plain_indexes, graph)),
            Arm("shorthaul", lambda: build_indexes(index_kernels, graph)),
        ],
        baseline="plain PyTorch",
        same=same_bits,
    )
    answer.compare(
        f"a graph's first training step, {name}",
        [Arm("all that its kernels read", build_topology)],
        baseline="all that its kernels read",
        same=not_compared,
    )


def measure(answer: Answer) -> None:
    answer.state(layer="64 -> 64, float32, 20 relations", goals="cold 5 s, warm 5 ms, index 15 ms")
    for layer in LAYERS[:1] if answer.is_quick else LAYERS:
        if answer.wants(layer):
            measure_compiling(answer, layer)
    if answer.wants("indexes"):
        measure_indexes(answer, "aifb" if answer.is_quick else "fb15k-237")


if __name__ == "__main__":
    answer_question(measure, rounds=5)
