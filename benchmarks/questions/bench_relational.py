"""How fast are compiled relational layers on small graphs, against PyG's and DGL's?

One layer 64 -> 64 on graphs with inverse relations, float32, indexes built before, as a layer in a loop
has them: inference, and a training step (forward, and backward to the input and all parameters); and
a model of two layers, end to end. Every arm has the same parameters; outputs and input gradients agree.
DGL's HGT is another formula than PyG's (no biases, no GELU): it is compared with that formula, written
in the language. `relational_cells` has the cells.
"""

from __future__ import annotations

from benchmarks.arms.relational_cells import measure_graphs
from benchmarks.arms.relational_graphs import SMALL
from benchmarks.measuring.answer import Answer, answer_question


def measure(answer: Answer) -> None:
    measure_graphs(answer, SMALL)


if __name__ == "__main__":
    answer_question(measure, rounds=3)
