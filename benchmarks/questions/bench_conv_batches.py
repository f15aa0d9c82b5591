"""How fast are the papers' twelve layers in float32 on batches of 8 and 32 images?

The arms and conditions of `bench_conv_layers.py`, which asks the same of single images.
"""

from __future__ import annotations

from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.questions.bench_conv_layers import measure_batches


def measure(answer: Answer) -> None:
    measure_batches(answer, (2,) if answer.is_quick else (8, 32))


if __name__ == "__main__":
    answer_question(measure, allocator="reuse", rounds=3)
