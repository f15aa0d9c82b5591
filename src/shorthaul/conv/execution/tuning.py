"""Schedules measured instead of estimated, and remembered for this processor.

The cost model chooses without measuring. `tune_schedule` measures the candidates of one problem at
one size; every later call of that problem, size and thread count takes the fastest, in this process
and in later ones, until the kernels are others (`edition`) or `shorthaul cache clear --only tuning`.
For an exact problem all candidates give the same bits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.progress import Progress

from shorthaul.conv.aten import memory_format
from shorthaul.conv.execution import execute as kernels
from shorthaul.conv.execution.plan import forget_plans
from shorthaul.conv.methods.base import ConvSchedule
from shorthaul.conv.planning.choice import Sizes, candidate_schedules, tuning_key
from shorthaul.conv.problem import ConvProblem
from shorthaul.jit import Candidate, Choice, autotune
from shorthaul.jit.runtime import kernel_threads
from shorthaul.settings import settings

Measurer = Callable[..., Choice]

# What this process has tuned already: asking the disk again at each call would take longer than a
# small convolution.
_tuned: dict[tuple[str, object], Choice] = {}


def tune_schedule(
    problem: ConvProblem, sizes: Sizes, *, measure: Measurer = autotune, is_quiet: bool = False
) -> Choice:
    """The fastest schedule for `sizes` (batch, depth, height, width), measured unless remembered.

    A progress bar on the terminal tells what is measured; `is_quiet` leaves it away. `measure` is
    called with a key, the candidates and `on_progress`, as `jit.autotune` is.
    """
    key = tuning_key(problem, sizes, kernel_threads())
    known = _tuned.get((key, settings.cache_directory))
    if known is not None and settings.autotune != "force":
        return known
    schedules = candidate_schedules(problem, sizes)
    candidates = _candidates(problem, sizes, schedules)
    with Progress(
        console=Console(stderr=True),
        transient=True,
        disable=is_quiet or not sys.stderr.isatty(),
    ) as progress:
        bar = progress.add_task(f"tuning {problem.describe()}", total=len(candidates))
        choice = measure(key, candidates, on_progress=lambda _: progress.advance(bar))
    _tuned[key, settings.cache_directory] = choice
    forget_plans()
    return choice


def _candidates(
    problem: ConvProblem, sizes: Sizes, schedules: Sequence[ConvSchedule]
) -> list[Candidate]:
    batch, *spatial = sizes
    image = torch.randn(batch, problem.in_channels, *spatial, dtype=torch.float32, device="cpu").to(
        problem.dtype
    )
    image = image.contiguous(memory_format=memory_format(problem))
    weight = torch.randn(problem.weight_shape, dtype=torch.float32, device="cpu").to(problem.dtype)
    bias = (
        torch.zeros(problem.out_channels, dtype=problem.dtype, device="cpu")
        if problem.has_bias
        else None
    )

    def candidate(schedule: ConvSchedule) -> Candidate:
        def run() -> None:
            kernels.run_forward(problem, image, weight, bias, schedule=schedule)

        return Candidate(schedule.describe(), run)

    return [candidate(each) for each in schedules]
