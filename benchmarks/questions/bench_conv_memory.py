"""How much memory does a convolution take beyond its input, weight and output?

Measured, not estimated: the peak of resident memory of a new process during one call, for im2col, the
papers' whole window tensor, PyTorch and ours. The twelve layers, one image, one thread, float32,
channels last. Figures are whole pages, and the C library keeps some of its own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from benchmarks.arms.conv_memory import ARMS, make_image, measure_in_process
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, same_within
from shorthaul.conv import TWELVE_LAYERS, estimate
from shorthaul.conv.planning.estimate import Layer


def measure(answer: Answer) -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        for layer in TWELVE_LAYERS[8:9] if answer.is_quick else TWELVE_LAYERS:
            _measure_layer(answer, layer)


def _measure_layer(answer: Answer, layer: Layer) -> None:
    problem = replace(layer.problem, layout="channels_last")
    expected = estimate(problem, 1, layer.sizes, threads=1)
    planned = {
        "im2col: unfold and mm": expected.im2col_bytes,
        "im2win: whole window tensor": expected.im2win_bytes,
        "shorthaul": expected.ours_bytes,
    }
    figures = {arm: {"extra_bytes": float(measure_in_process(layer.name, arm))} for arm in ARMS}
    for arm, planned_bytes in planned.items():
        figures[arm]["planned_bytes"] = float(planned_bytes)
    image = make_image(problem, *layer.sizes[1:])
    weight = torch.randn(problem.weight_shape).squeeze(2) / problem.window_values**0.5
    answer.compare(
        layer.name,
        [Arm(arm, partial(convolve, problem, image, weight)) for arm, convolve in ARMS.items()],
        baseline="PyTorch eager",
        same=same_within(1e-3, 1e-3),  # sums in another order
        figures=figures,
        sample_seconds=0.02,
    )


if __name__ == "__main__":
    answer_question(measure, rounds=3)
