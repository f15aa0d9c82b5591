"""How fast are whole heterogeneous models, against PyG's as they are and under `torch.compile`?

Two `HeteroConv` of SAGE, GAT or GATv2 with a layer for each relation, and SAGE made heterogeneous by
`to_hetero`; 64 wide, 4 heads, float32; inference, and a step of training with the gradients of all
parameters. Each arm has a process of its own, the same parameters and inputs; results and gradients
agree. Memory is what the process has at most during a call.
"""

from __future__ import annotations

import torch

from benchmarks.arms.whole_models import KINDS
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import same_within
from benchmarks.peers.process import ARMS_FOLDER, ArmProcess

SCRIPT = ARMS_FOLDER / "whole_models.py"
GRAPHS = ("heco_dblp", "aifb", "ogbn_mag_10pct", "am_kgbench")
ARMS = ("PyG", "PyG compiled", "shorthaul")
# Sums of float32 in another order, through two layers and their gradients.
SAME = same_within(relative=1e-3, absolute=1e-4)


def measure_cell(answer: Answer, graph: str, kind: str, *, training: bool) -> None:
    """One model on one graph, by every arm, each in a fresh process."""
    case = f"{kind}, {graph}, {'training' if training else 'inference'}"
    if not answer.wants(case):
        return
    names = [each for each in ARMS if not answer.is_quick or each != "PyG compiled"]
    processes = [ArmProcess.here(SCRIPT) for _ in names]
    try:
        arms = [
            process.arm(
                "model",
                name=name,
                arm=name,
                kind=kind,
                graph=graph,
                training=training,
                threads=torch.get_num_threads(),
            )
            for name, process in zip(names, processes, strict=True)
        ]
        for each in arms:
            each.result()  # compiles, which is not the first call's memory
        memory = {each.name: each.measure_peak() for each in arms}
        answer.compare(case, arms, baseline=names[0], same=SAME, figures=memory)
    finally:
        for each in processes:
            each.close()


def measure(answer: Answer) -> None:
    answer.state(model="two layers, 64 wide, 4 heads, float32", inputs="random features")
    for graph in GRAPHS[:1] if answer.is_quick else GRAPHS:
        for kind in KINDS:
            for training in (False, True):
                measure_cell(answer, graph, kind, training=training)


if __name__ == "__main__":
    answer_question(measure, rounds=3)
