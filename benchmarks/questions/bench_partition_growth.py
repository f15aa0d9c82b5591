"""Do the time and the memory of cutting a graph grow with its edges, up to 100 million of them?

Power-law graphs of 14.5 edges and 16 float32 features a node, on disk, cut into four parts with their features: by ranges,
which looks at no edge before it writes them, and by the streaming partitioner, three passes over them. Peaks are those of the
process that cuts; what lies in the page cache is not in them. Graphs without communities are the worst for a partitioner: its
cut is told, and stands for no other graph.

A full run takes about a quarter of an hour, and 8 GB of disk.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

import shorthaul as sh
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import not_compared
from benchmarks.peers.process import ARMS_FOLDER, ArmProcess

ROOT = Path(__file__).parents[2]
MILLIONS_OF_EDGES, EDGES_PER_NODE, PARTS = (10, 30, 100), 14.5, 4
METHODS = {"range": "range", "stream": "shorthaul, stream"}


def measure(answer: Answer) -> None:
    threads = torch.get_num_threads()
    answer.state(parts=f"{PARTS}, with features of 64 bytes a node", graph="power law, on disk")
    for millions in MILLIONS_OF_EDGES:
        edges = millions * (20_000 if answer.is_quick else 10**6)
        with tempfile.TemporaryDirectory(dir=ROOT) as place:
            graph = f"{place}/graph"
            nodes = round(edges / EDGES_PER_NODE)
            sh.datasets.write_power_law_graph(graph, nodes=nodes, edges=edges, features=16)
            asked: dict[str, Any] = {"folder": graph, "parts": PARTS, "threads": threads}
            arms, figures = [], {}
            for method, name in METHODS.items():
                with ArmProcess.here(ARMS_FOLDER / "partition_arms.py") as process:
                    arm = process.arm(
                        "partition", name=name, out=f"{place}/{method}", method=method, **asked
                    )
                    found = arm.result()
                    assert isinstance(found, dict)
                    figures[name] = {"cut_edges_share": found["cut_share"], **arm.measure_peak()}
            with ArmProcess.here(ARMS_FOLDER / "partition_arms.py") as process:
                arms = [
                    process.arm(
                        "partition", name=name, out=f"{place}/{method}", method=method, **asked
                    )
                    for method, name in METHODS.items()
                ]
                answer.compare(
                    f"{edges / 1e6:g} million edges",
                    arms,
                    baseline="range",
                    same=not_compared,
                    figures=figures,
                    sample_seconds=0.0,
                )


if __name__ == "__main__":
    answer_question(measure, rounds=3)
