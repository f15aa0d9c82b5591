"""How do keeping, offloading and recomputing trade memory for time as the batch grows?

The curve of recomputing, offloading and keeping: one step of a GPT shape at three batch sizes, with
the peak of live activations and of resident memory against the time of a step. `make results` draws
it as docs/offload_curve.svg.
"""

from __future__ import annotations

from benchmarks.arms.offload_arms import (
    KEEP,
    OFFLOAD,
    OFFLOAD_LEAN,
    RECOMPUTE,
    RECOMPUTE_OFFLOAD,
    choose_shape,
    compare_arms,
    settings_of,
    state_conditions,
)
from benchmarks.measuring.answer import Answer, answer_question

ARMS = (KEEP, OFFLOAD, OFFLOAD_LEAN, RECOMPUTE, RECOMPUTE_OFFLOAD)


def measure(answer: Answer) -> None:
    for batch in (2, 4, 8):
        shape = choose_shape(answer, batch)
        settings = settings_of("gpt", shape, ARMS)
        compare_arms(answer, f"gpt, batch {batch}", settings, with_memory=True)
    state_conditions(answer, shape)


if __name__ == "__main__":
    answer_question(measure, rounds=3)
