"""What do activations on disk cost in time, and save in memory, against keeping and recomputing?

One step (forward, loss, backward) of GPT, BERT and T5 shapes. Arms: keep everything; offload within
30 % of what keeping takes, and within 12 %; recompute every block; recompute and offload; PyTorch's
`save_on_cpu`; the published adaptive rule; and keeping beside a thread that writes and reads as many bytes
as offloading to 30 % does, which is the least that those can cost. `offload_arms` says what the figures of memory are.
"""

from __future__ import annotations

from benchmarks.arms.offload_arms import choose_shape, compare_arms, settings_of, state_conditions
from benchmarks.measuring.answer import Answer, answer_question


def measure(answer: Answer) -> None:
    shape = choose_shape(answer)
    for kind in ("gpt", "bert", "t5"):
        compare_arms(answer, kind, settings_of(kind, shape), with_memory=True)
    state_conditions(answer, shape, batch=str(shape.batch))


if __name__ == "__main__":
    answer_question(measure, rounds=13)
