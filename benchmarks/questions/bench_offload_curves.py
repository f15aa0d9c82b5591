"""How does the trade of memory for time change when the disk is slower?

The curves of `offload_batches` on disks throttled to 100, 300 and 1000 MB/s: one step of a GPT shape at three
batch sizes, with the peak of live activations against the time of a step. `make results` draws them
as docs/offload_disks.svg.
"""

from __future__ import annotations

from benchmarks.arms.offload_arms import (
    KEEP,
    OFFLOAD,
    RECOMPUTE,
    choose_shape,
    compare_arms,
    settings_of,
    state_conditions,
)
from benchmarks.measuring.answer import Answer, answer_question

ARMS = (KEEP, OFFLOAD, RECOMPUTE)


def measure(answer: Answer) -> None:
    for rate in (100e6, 300e6, 1000e6):
        for batch in (2, 4, 8):
            shape = choose_shape(answer, batch)
            settings = settings_of("gpt", shape, ARMS, disk_bytes_per_second=rate)
            case = f"gpt, batch {batch}, disk of {rate / 1e6:.0f} MB/s"
            compare_arms(answer, case, settings, with_memory=False, with_live=True)
    state_conditions(answer, shape)


if __name__ == "__main__":
    answer_question(measure, rounds=3)
