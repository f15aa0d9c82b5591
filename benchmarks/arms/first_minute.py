"""The first calls of a model, in a process of its own.

Run as `python -m benchmarks.arms.first_minute <model> <inference or training> <eager, replaced or waiting>
<size>`; `SHORTHAUL_CACHE` says where kernels are kept. Prints as JSON: seconds until the first output, seconds
until a step compiled and decided nothing, with that step, seconds of a step from then on, and the kernels in the cache.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

import shorthaul as sh
from benchmarks.arms.first_minute_models import MODELS
from shorthaul.jit import KernelCache
from shorthaul.jit.compiling.pool import compilers

MOST_SECONDS = 120
STEPS = 5


def settle(
    step: Callable[[], None], count_choices: Callable[[], int], is_idle: Callable[[], bool]
) -> None:
    """Run step after step, until one compiles and decides nothing.

    Layers that are never called, or cannot be measured, never decide: nobody waits for those.

    Args:
        step: A step of the model.
        count_choices: How many choices were made so far.
        is_idle: Whether nothing is being compiled.
    """
    started = time.perf_counter()
    while time.perf_counter() - started < MOST_SECONDS:
        before, was_idle = count_choices(), is_idle()
        step()
        if was_idle and is_idle() and count_choices() == before:
            return


def main() -> None:
    """Replace the convolutions, and run step after step."""
    name, mode, arm, size = sys.argv[1:]
    torch.manual_seed(0)
    model, is_training = MODELS[name](), mode == "training"
    model.train(is_training)
    image = torch.randn(2, 3, int(size), int(size))
    if arm == "waiting":
        sh.settings.set(compiling="wait")

    def step() -> None:
        with torch.set_grad_enabled(is_training):
            output = model(image)
            if is_training:
                output.sum().backward()

    started = time.perf_counter()
    report = None if arm == "eager" else sh.replace_convs(model)
    step()
    first = time.perf_counter() - started
    if report is not None:
        settle(step, lambda: sum(len(each.choices) for each in report.layers), compilers.is_idle)
    settled = time.perf_counter() - started
    seconds = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
    said = {
        "first": first,
        "settled": settled,
        "step": statistics.median(seconds),
        "kernels": len(KernelCache().entries()),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
