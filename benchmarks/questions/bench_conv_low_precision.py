"""How fast are the twelve layers in bfloat16 and float16, beside PyTorch?

On processors without instructions for them PyTorch multiplies plain im2col matrices; ours widens
values while it packs and sums in float32.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.arms.conv_arms import (
    EAGER,
    Case,
    add_rates,
    inference_arms,
    measure_peak,
    thread_counts,
)
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import same_within
from shorthaul.conv import TWELVE_LAYERS


def measure(answer: Answer) -> None:
    threads = thread_counts(answer)
    peaks = measure_peak(threads)
    layers = TWELVE_LAYERS[8:9] if answer.is_quick else TWELVE_LAYERS
    for count in threads:
        torch.set_num_threads(count)
        for dtype in (torch.bfloat16, torch.float16):
            for layout in ("channels_last", "contiguous"):
                for layer in layers:
                    problem = replace(layer.problem, dtype=dtype, layout=layout)
                    word = str(dtype).removeprefix("torch.")
                    name = f"{layer.name} {word} {layout} threads {count}"
                    case = Case(name, problem, 1, layer.sizes)
                    measured = answer.compare(
                        name,
                        inference_arms(case),
                        baseline=EAGER,
                        # Both round to eight bits, and PyTorch rounds on the way.
                        same=same_within(0.05, 0.05),
                        sample_seconds=0.02,
                    )
                    add_rates(answer, measured, case.flops, peaks[count])


if __name__ == "__main__":
    answer_question(measure, allocator="reuse", rounds=5)
