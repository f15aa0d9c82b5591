"""How fast are compiled relational layers on the largest graph, against PyG's and DGL's?

As `bench_relational`, on one of millions of edges.
"""

from __future__ import annotations

from benchmarks.arms.relational_cells import measure_graphs
from benchmarks.arms.relational_graphs import LARGEST
from benchmarks.measuring.answer import Answer, answer_question


def measure(answer: Answer) -> None:
    measure_graphs(answer, LARGEST)


if __name__ == "__main__":
    answer_question(measure, rounds=3)
