"""How fast are the convolutions that PyTorch is slow at?

Few output channels, small groups, depthwise, sequences, volumes and tiny images, in float32.
"""

from __future__ import annotations

import torch

from benchmarks.arms.conv_arms import (
    EAGER,
    Case,
    add_rates,
    inference_arms,
    measure_peak,
    thread_counts,
    with_layout,
)
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import same_within
from shorthaul.conv.problem import ConvProblem


def _square(
    name: str,
    channels: tuple[int, int],
    kernel: int,
    size: int,
    *,
    groups: int = 1,
    stride: int = 1,
) -> Case:
    half = kernel // 2
    problem = ConvProblem(
        *channels,
        (1, kernel, kernel),
        stride=(1, stride, stride),
        padding=((0, 0), (half, half), (half, half)),
        groups=groups,
    )
    return Case(name, problem, 1, (1, size, size))


CASES = (
    _square("64 to 3 channels, 3x3", (64, 3), 3, 256),
    _square("64 to 1 channel, 3x3", (64, 1), 3, 256),
    _square("4 channels per group, 3x3", (128, 128), 3, 56, groups=32),
    _square("8 channels per group, 3x3", (256, 256), 3, 56, groups=32),
    _square("depthwise 3x3", (128, 128), 3, 56, groups=128),
    _square("depthwise 3x3, stride 2", (128, 128), 3, 112, groups=128, stride=2),
    _square("depthwise 7x7", (96, 96), 7, 56, groups=96),
    _square("depthwise 31x31", (128, 128), 31, 56, groups=128),
    _square("odd channels, 17 to 33", (17, 33), 3, 56),
    _square("tiny image, 1 to 8 channels, 5x5", (1, 8), 5, 28),
    Case(
        "conv1d depthwise, 31 wide",
        ConvProblem(256, 256, (1, 1, 31), padding=((0, 0), (0, 0), (15, 15)), groups=256),
        4,
        (1, 1, 2000),
        dimensions=1,
    ),
    Case(
        "conv1d stem, 1 to 512, 10 wide, stride 5",
        ConvProblem(1, 512, (1, 1, 10), stride=(1, 1, 5)),
        1,
        (1, 1, 160_000),
        dimensions=1,
    ),
    Case(
        "conv3d stem, 3 to 64, 3x3x3",
        ConvProblem(3, 64, (3, 3, 3), padding=((1, 1), (1, 1), (1, 1))),
        1,
        (16, 112, 112),
        dimensions=3,
    ),
)


def measure(answer: Answer) -> None:
    threads = thread_counts(answer)
    peaks = measure_peak(threads)
    for count in threads:
        torch.set_num_threads(count)
        for case in CASES[::6] if answer.is_quick else CASES:
            for layout in (
                ("contiguous", "channels_last") if case.dimensions > 1 else ("contiguous",)
            ):
                problem = with_layout(case.problem, layout)
                chosen = Case(case.name, problem, case.batch, case.sizes, case.dimensions)
                measured = answer.compare(
                    f"{case.name} {layout} threads {count}",
                    inference_arms(chosen),
                    baseline=EAGER,
                    same=same_within(1e-4, 1e-4),  # sums in another order
                    sample_seconds=0.02,
                )
                add_rates(answer, measured, chosen.flops, peaks[count])


if __name__ == "__main__":
    answer_question(measure, allocator="reuse")
