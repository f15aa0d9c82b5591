"""Do 400 different image sizes in a row cost time or memory?

Each size is new to the process. A library that makes a plan for each size pays for it at the first
call and keeps it; our kernels do not know the image size.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, not_compared
from shorthaul.conv import conv2d

SIZES = 400
Convolve = Callable[[Tensor, Tensor], Tensor]
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    with open("/proc/self/statm") as statistics:
        return int(statistics.read().split()[1]) * PAGE_BYTES


def call_seconds(convolve: Convolve, images: list[Tensor], weight: Tensor) -> float:
    """The median of one call for each image."""
    taken = []
    for image in images:
        started = time.perf_counter()
        convolve(image, weight)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def measure(answer: Answer) -> None:
    count = 20 if answer.is_quick else SIZES
    weight = torch.randn(64, 64, 3, 3)
    # Sizes between 40 and 80, in an order that repeats none.
    sizes = [(40 + index // 20, 40 + index % 20 * 2) for index in range(count)]
    images = [torch.randn(1, 64, height, width) for height, width in sizes]
    fresh = [torch.randn(1, 64, height + 1, width + 1) for height, width in sizes]
    with torch.no_grad():
        for convolve in (torch.conv2d, conv2d):  # the first compile is not the question
            convolve(images[0], weight)
        figures = {}
        for name, convolve in (("PyTorch eager", torch.conv2d), ("shorthaul", conv2d)):
            before_bytes = resident_bytes()
            first = call_seconds(convolve, fresh, weight)
            growth_bytes = resident_bytes() - before_bytes
            later = call_seconds(convolve, fresh, weight)
            figures[name] = {
                "growth_bytes": float(growth_bytes),
                "first_call_seconds": first,
                "later_call_seconds": later,
            }

        def run(convolve: Convolve) -> Callable[[], None]:
            def call() -> None:
                with torch.no_grad():
                    for image in images:
                        convolve(image, weight)

            return call

        answer.compare(
            f"{count} sizes, each again and again",
            [
                Arm("PyTorch eager", run(torch.conv2d), events=count),
                Arm("shorthaul", run(conv2d), events=count),
            ],
            baseline="PyTorch eager",
            same=not_compared,
            figures=figures,
        )
    answer.state(layout="contiguous", growth="resident memory after one pass over new sizes")


if __name__ == "__main__":
    answer_question(measure, rounds=5)
