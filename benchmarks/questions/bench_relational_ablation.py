"""What are compact rows and the order of products worth in relational layers?

The paper's ablation: both passes, either and neither, switched off by name. Compaction is the pass
`compact`; reordering is every pass that moves a product: weights first, bases, before or after sums.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.arms.relational_cells import describe_difference, list_cells, make_run
from benchmarks.arms.relational_graphs import load_graph
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm
from benchmarks.rendering.relational_rows import KINDS, geometric_mean

COMPACTION = ("compact",)
REORDERING = ("multiply_weights_first", "order_bases", "place_products")
WITHOUT = {
    "neither": (*COMPACTION, *REORDERING),
    "compaction": REORDERING,
    "reordering": COMPACTION,
    "both": (),
}
GRAPHS = ("aifb", "fb15k-237", "ogbn_mag_10pct")
LAYERS = ("RGCN", "RGAT 1 head", "HGT 4 heads")


def same_tensors(expected: Any, got: Any) -> str:
    """Outputs and gradients agree as sums in another order do."""
    return describe_difference(expected, got)


def measure_graph(answer: Answer, name: str) -> None:
    graph = load_graph(name)
    torch.manual_seed(0)
    x = torch.randn(graph.num_nodes, 64)
    made = {arm: {cell.layer: cell for cell in list_cells(graph)} for arm in WITHOUT}
    for layer in LAYERS:
        cells = {arm: made[arm][layer] for arm in WITHOUT}
        for arm, cell in cells.items():
            cell.module.load_state_dict(cells["neither"].module.state_dict())
            function: Any = cell.module.function
            function.without = WITHOUT[arm]
        for kind in KINDS:
            case = f"{layer}, {name}, {kind}"
            if answer.wants(case):
                training = kind == "training"
                arms = [Arm(arm, make_run(cells[arm], x, training)) for arm in WITHOUT]
                answer.compare(case, arms, baseline="neither", same=same_tensors)


def summarize(answer: Answer) -> None:
    """The geometric mean of each arm over all cells."""
    measured = list(answer.rows)
    cells = len({row["case"] for row in measured})
    for arm in WITHOUT:
        own = [row for row in measured if row["arm"] == arm]
        row: dict[str, Any] = {"case": f"geometric mean of {cells} cells", "arm": arm}
        row |= {"baseline": "neither", "rounds": own[0]["rounds"], "calls": 1, "figures": {}}
        for figure in ("wall_seconds", "cpu_seconds", "speedup"):
            row[figure] = {
                part: geometric_mean([each[figure][part] for each in own])
                for part in ("low", "median", "high")
            }
        answer.rows.append(row)


def measure(answer: Answer) -> None:
    answer.state(
        layer="64 -> 64, float32, inverse relations included",
        paper="both passes together make up to 3.8 times, on a GPU",
    )
    for name in GRAPHS[:1] if answer.is_quick else GRAPHS:
        measure_graph(answer, name)
    summarize(answer)


if __name__ == "__main__":
    answer_question(measure, rounds=5)
