"""How fast are compiled relational layers on large graphs, against PyG's and DGL's?

As `bench_relational`, on graphs of about a million edges.
"""

from __future__ import annotations

from benchmarks.arms.relational_cells import measure_graphs
from benchmarks.arms.relational_graphs import LARGE
from benchmarks.measuring.answer import Answer, answer_question


def measure(answer: Answer) -> None:
    measure_graphs(answer, LARGE)


if __name__ == "__main__":
    answer_question(measure, rounds=3)
