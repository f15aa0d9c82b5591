"""How near are compiled relational layers to what their own bytes and FLOPs allow?

The roofline of a layer is that of `explain`: kernels one after the other, each in the longer of moving every
array once and of doing its operations, at the speeds of this machine measured just before and after.
Times are of whole calls, with whatever a call costs besides its kernels.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.answer import Answer, answer_question
from benchmarks.measure import Arm, not_compared
from benchmarks.relational_cells import list_cells, make_run
from benchmarks.relational_graphs import load_graph
from benchmarks.relational_rows import KINDS, OURS
from shorthaul.relational.estimate import Machine

LAYERS = ("RGCN", "RGAT 1 head", "HGT 4 heads")


def measure_graph(answer: Answer, name: str) -> None:
    graph = load_graph(name)
    torch.manual_seed(0)
    x = torch.randn(graph.num_nodes, 64)
    cells = {cell.layer: cell for cell in list_cells(graph)}
    machines = [Machine.measure()]
    found = []
    for layer in LAYERS:
        for kind in KINDS:
            run = make_run(cells[layer], x, kind == "training")
            case = f"{layer}, {name}, {kind}"
            answer.compare(case, [Arm(OURS, run)], baseline=OURS, same=not_compared)
            function: Any = cells[layer].module.function
            estimate = function.explanation().estimate()
            if estimate is None:
                raise ValueError(f"{case} was not compiled")
            found.append((answer.rows[-1], estimate))
    machines.append(Machine.measure())
    best = Machine(
        max(each.bytes_per_second for each in machines),
        max(each.flops_per_second for each in machines),
    )
    for row, estimate in found:
        seconds = estimate.seconds(best)
        row["figures"] |= {
            "moved_bytes": estimate.moved_bytes,
            "flops": estimate.flops,
            "roofline_seconds": seconds,
            "times_roofline": row["wall_seconds"]["median"] / seconds,
        }
    answer.state(machine_limits=str(best), goal="RGCN within 1.5 times its roofline")


def measure(answer: Answer) -> None:
    answer.state(layer="64 -> 64, float32, inverse relations included")
    measure_graph(answer, "aifb" if answer.is_quick else "fb15k-237")


if __name__ == "__main__":
    answer_question(measure, rounds=9)
