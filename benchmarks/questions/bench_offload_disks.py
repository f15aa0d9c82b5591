"""How does offloading fare on slower disks, and with one compute thread?

A GPT shape on disks throttled to 100, 300 and 1000 MB/s: keep everything; offload within 30 % of it;
let the plan also recompute blocks; the published rule. Then GPT, BERT and T5 shapes on one thread,
which leaves a core to the disk.
"""

from __future__ import annotations

from benchmarks.arms.offload_arms import (
    CHOOSE,
    KEEP,
    OFFLOAD,
    PUBLISHED,
    RECOMPUTE,
    choose_shape,
    compare_arms,
    settings_of,
    state_conditions,
)
from benchmarks.measuring.answer import Answer, answer_question


def measure(answer: Answer) -> None:
    shape = choose_shape(answer)
    for rate in (100e6, 300e6, 1000e6):
        case = f"gpt, disk of {rate / 1e6:.0f} MB/s"
        arms = (KEEP, OFFLOAD, CHOOSE, RECOMPUTE, PUBLISHED)
        settings = settings_of("gpt", shape, arms, disk_bytes_per_second=rate)
        compare_arms(answer, case, settings, with_memory=False)
    for kind in ("gpt", "bert", "t5"):
        settings = settings_of(kind, shape, (KEEP, OFFLOAD, RECOMPUTE), threads=1)
        compare_arms(answer, f"{kind}, 1 thread", settings, with_memory=False)
    state_conditions(answer, shape, batch=str(shape.batch))


if __name__ == "__main__":
    answer_question(measure, rounds=3)
