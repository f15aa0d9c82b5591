"""How fast are the papers' twelve layers in float32, beside PyTorch and prepacked oneDNN?

Both layouts, one thread and all, single images; larger batches are another question
(`bench_conv_batches.py`). Packing of images is part of our time; weights are packed once, as in the
prepacked peer. Outputs are fresh in every arm.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from benchmarks.arms.conv_arms import (
    EAGER,
    Case,
    add_rates,
    inference_arms,
    lowered,
    measure_peak,
    thread_counts,
    with_layout,
)
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import same_within
from shorthaul.conv import TWELVE_LAYERS, estimate
from shorthaul.conv.planning.estimate import Layer


def measure(answer: Answer) -> None:
    measure_batches(answer, (1,))


def measure_batches(answer: Answer, batches: Sequence[int]) -> None:
    """Every layer, layout and thread count, for these batches."""
    threads = thread_counts(answer)
    peaks = measure_peak(threads)
    answer.state(
        allocator="freed blocks are kept, so outputs are not made of fresh pages",
        **{f"peak_{count}_threads": f"{rate / 1e9:.1f} GFLOP/s" for count, rate in peaks.items()},
    )
    layers = [TWELVE_LAYERS[8], TWELVE_LAYERS[11]] if answer.is_quick else TWELVE_LAYERS
    for count, layout, batch, layer in itertools.product(
        threads, ("channels_last", "contiguous"), batches, layers
    ):
        torch.set_num_threads(count)
        _measure_layer(answer, layer, layout, batch, count, peaks[count])


def _measure_layer(
    answer: Answer, layer: Layer, layout: str, batch: int, threads: int, peak: float
) -> None:
    problem = with_layout(layer.problem, layout)
    name = f"{layer.name} {layout} batch {batch} threads {threads}"
    case = Case(name, problem, batch, layer.sizes)
    arms = inference_arms(
        case,
        with_prepacked=layout == "channels_last",
        with_inexact=problem.kernel == (1, 3, 3),
    )
    if batch == 1:
        arms.append(lowered(case))
    expected = estimate(problem, batch, layer.sizes, threads=threads)
    measured = answer.compare(
        name,
        arms,
        baseline=EAGER,
        # Sums of up to 4,608 products of about one, in another order, and Winograd.
        same=same_within(1e-3, 1e-3),
        figures={
            "shorthaul": {"workspace_bytes": expected.ours_bytes},
            "im2col: unfold and mm": {"workspace_bytes": expected.im2col_bytes},
        },
        sample_seconds=0.02,
    )
    add_rates(answer, measured, case.flops, peak)


if __name__ == "__main__":
    answer_question(measure, allocator="reuse", rounds=7)
