"""Do time and memory of relational layers grow with the edges, and not with the relations?

A training step on graphs drawn at random: 0.1 to 20 million edges with 10 edges per node and 100
relations, and a million edges with 10 to 10,000 relations. Each graph has a process of its own, whose
first step tells the memory. The width is 16, so that the largest graph fits.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import not_compared
from benchmarks.peers.process import ARMS_FOLDER, ArmProcess

ARMS = ARMS_FOLDER / "relational_arms.py"
EDGES = (100_000, 500_000, 2_000_000, 8_000_000, 20_000_000)
RELATIONS = (10, 100, 1000, 10_000)
LAYERS = ("RGCN", "RGAT")


def measure_growth(answer: Answer, case: str, sizes: dict[str, dict[str, Any]]) -> None:
    """One arm per size, one process at a time: the largest need most of the memory."""
    if not answer.wants(case):
        return
    baseline = next(iter(sizes))
    base_seconds = 0.0
    for name, size in sizes.items():
        with ArmProcess.here(ARMS) as process:
            arm = process.arm("drawn", name=name, threads=torch.get_num_threads(), **size)
            peak = arm.measure_peak()
            edges = size["edges"]
            memory = {
                "growth_bytes": peak["growth_bytes"],
                "growth_per_edge_bytes": peak["growth_bytes"] / edges,
            }
            [measured] = answer.compare(
                case, [arm], baseline=name, same=not_compared, figures={name: memory}
            )
        row, median = answer.rows[-1], measured.wall_seconds.median
        base_seconds = base_seconds or median
        row["figures"]["per_edge_seconds"] = median / edges
        row["baseline"] = baseline
        row["speedup"] = dict.fromkeys(("low", "median", "high"), base_seconds / median)


def measure(answer: Answer) -> None:
    answer.state(
        graphs="sources, targets and relations drawn at random", width="16 -> 16, float32, training"
    )
    count = 2 if answer.is_quick else None
    for layer in LAYERS:
        same = {"layer": layer, "width": 16}
        measure_growth(
            answer,
            f"{layer}, 100 relations",
            {
                f"{edges:,} edges": {**same, "edges": edges, "nodes": edges // 10, "relations": 100}
                for edges in EDGES[:count]
            },
        )
        edges = 100_000 if answer.is_quick else 1_000_000
        measure_growth(
            answer,
            f"{layer}, {edges:,} edges",
            {
                f"{relations:,} relations": {
                    **same,
                    "edges": edges,
                    "nodes": edges // 10,
                    "relations": relations,
                }
                for relations in RELATIONS
            },
        )


if __name__ == "__main__":
    answer_question(measure, rounds=5)
