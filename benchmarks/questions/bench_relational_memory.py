"""How much memory does a training step of a relational layer take on FB15k-237?

The peak of resident memory over what the process had before its first step, each arm in a process of
its own, with the graph's indexes built. PyG's RGATConv makes a matrix per edge and its HGTConv rows of
every node and relation: where that passes what a peer may have, the row says what it needs.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.arms.relational_cells import LIMIT_SECONDS, MEMORY_BYTES, PEERS, list_cells
from benchmarks.arms.relational_graphs import load_graph, name_types, save_edges
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Sample, not_compared
from benchmarks.peers.process import ARMS_FOLDER, ArmProcess, PeerError
from benchmarks.rendering.relational_rows import OURS

ARMS = ARMS_FOLDER / "relational_arms.py"
LAYERS = ("RGCN", "RGAT 1 head", "RGAT 4 heads", "HGT 1 head", "HGT 4 heads")


@dataclass(frozen=True)
class FirstStep:
    """A step that was taken once, with what it took."""

    name: str
    seconds: Sample
    peak: dict[str, float]
    can_repeat: bool = False

    def sample(self, calls: int) -> Sample:
        """What the step took."""
        del calls
        return self.seconds

    def result(self) -> object:
        """Nothing: layers are compared where they are timed."""
        return None


def take_step(name: str, process: ArmProcess, key: str, **arguments: Any) -> FirstStep:
    """The first step of an arm, and the peak of memory in it."""
    arm = process.arm(key, name=name, **arguments)
    started = time.perf_counter()
    peak = arm.measure_peak()
    took = time.perf_counter() - started
    return FirstStep(name, Sample(took, took), peak)


def measure_layer(answer: Answer, name: str, layer: str, folder: Path) -> None:
    graph = load_graph(name)
    cell = next(each for each in list_cells(graph) if each.layer == layer)
    torch.save({"parameters": cell.module.state_dict()}, folder / "state.pt")
    asked = {
        "edges": str(folder / "edges.pt"),
        "state": str(folder / "state.pt"),
        "training": True,
        "threads": torch.get_num_threads(),
    }
    steps, left_out = [], {}
    for peer in cell.peers:
        if peer.needs_bytes(training=True) > MEMORY_BYTES:
            left_out[peer.name] = {"needs_bytes": peer.needs_bytes(training=True)}
            continue
        try:
            with ArmProcess(PEERS, reply_seconds=LIMIT_SECONDS) as process:
                steps.append(take_step(peer.name, process, peer.key, **peer.options, **asked))
        except PeerError as error:
            needed = re.search(r"MemoryError: needs (\d+) bytes", str(error))
            left_out[peer.name] = {"needs_bytes": int(needed[1])} if needed else {"failed": 1}
            print(error if not needed else f"{peer.name}: {needed[0]}", file=sys.stderr)
    with ArmProcess.here(ARMS) as process:
        threads = torch.get_num_threads()
        steps.append(take_step(OURS, process, "cell", graph=name, layer=layer, threads=threads))
    case = f"{layer}, {name}, training"
    figures = {each.name: each.peak for each in steps}
    answer.compare(case, steps, baseline=steps[0].name, same=not_compared, figures=figures)
    for arm, why in left_out.items():
        answer.leave_out(case, arm, steps[0].name, **why)


def measure(answer: Answer) -> None:
    name = "aifb" if answer.is_quick else "fb15k-237"
    answer.state(
        layer="64 -> 64, float32, inverse relations included",
        time="of the first step, which compiles or loads kernels: not a speed",
    )
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        graph = name_types(load_graph(name))
        save_edges(graph, torch.randn(graph.num_nodes, 64), folder / "edges.pt")
        for layer in LAYERS:
            if answer.wants(layer):
                measure_layer(answer, name, layer, folder)


if __name__ == "__main__":
    answer_question(measure, rounds=1)
