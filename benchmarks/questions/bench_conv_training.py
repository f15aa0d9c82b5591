"""How fast is a training step of each of the twelve layers: forward and both gradients?

In float32, batches of 8, both layouts, beside PyTorch's autograd.
"""

from __future__ import annotations

import torch

from benchmarks.arms.conv_arms import (
    EAGER,
    Case,
    add_rates,
    measure_peak,
    thread_counts,
    training_arms,
    with_layout,
)
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import same_within
from shorthaul.conv import TWELVE_LAYERS

BATCH = 8


def measure(answer: Answer) -> None:
    threads = thread_counts(answer)
    peaks = measure_peak(threads)
    layers = TWELVE_LAYERS[8:9] if answer.is_quick else TWELVE_LAYERS
    for count in threads:
        torch.set_num_threads(count)
        for layout in ("channels_last", "contiguous"):
            for layer in layers:
                case = Case(
                    f"{layer.name} {layout} threads {count}",
                    with_layout(layer.problem, layout),
                    1 if answer.is_quick else BATCH,
                    layer.sizes,
                )
                measured = answer.compare(
                    case.name,
                    training_arms(case),
                    baseline=EAGER,
                    # A weight's gradient sums up to 400,000 products.
                    same=same_within(1e-3, 5e-2),
                    sample_seconds=0.02,
                )
                add_rates(answer, measured, 3 * case.flops, peaks[count])


if __name__ == "__main__":
    answer_question(measure, allocator="reuse", rounds=5)
