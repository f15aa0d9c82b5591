"""How near are compiled relational layers to what their own bytes and FLOPs allow?

The roofline of a layer is that of `explain`: kernels one after the other, each in the longer of moving every
array once and of doing its operations, at the speeds of this machine measured just before and after.
Times are of whole calls, with whatever a call costs besides its kernels. `one order` has the products of all
relations before the sums: it has more work, which takes longer, but is nearer to what that work allows.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.arms.relational_cells import Cell, describe_difference, list_cells, make_run
from benchmarks.arms.relational_graphs import load_graph
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm
from benchmarks.rendering.relational_rows import KINDS, OURS
from shorthaul.relational.planning.estimate import Machine

LAYERS = ("RGCN", "RGAT 1 head", "HGT 4 heads")
ONE_ORDER = "one order"


def function_of(cell: Cell) -> Any:
    """The compiled function of a ready layer."""
    return cell.module.function


def measure_graph(answer: Answer, name: str) -> None:
    graph = load_graph(name)
    torch.manual_seed(0)
    x = torch.randn(graph.num_nodes, 64)
    cells, others = ({cell.layer: cell for cell in list_cells(graph)} for _ in range(2))
    machines = [Machine.measure()]
    found = []
    for layer in LAYERS:
        arms = {OURS: cells[layer]}
        if layer == "RGCN":
            function_of(others[layer]).without = ("choose_sides",)
            others[layer].module.load_state_dict(cells[layer].module.state_dict())
            arms = {ONE_ORDER: others[layer], **arms}
        for kind in KINDS:
            case = f"{layer}, {name}, {kind}"
            answer.compare(
                case,
                [Arm(arm, make_run(cell, x, kind == "training")) for arm, cell in arms.items()],
                baseline=next(iter(arms)),
                same=describe_difference,
            )
            for arm, cell in arms.items():
                estimate = function_of(cell).explanation().estimate()
                if estimate is None:
                    raise ValueError(f"{case} was not compiled")
                row = next(r for r in answer.rows if (r["case"], r["arm"]) == (case, arm))
                found.append((row, estimate))
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
    answer_question(measure, rounds=21)
