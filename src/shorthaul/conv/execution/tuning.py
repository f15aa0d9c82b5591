"""Schedules measured instead of estimated, and remembered for this processor.

The cost model chooses without measuring. `tune_schedule` measures the candidates of one problem at
one size; every later call of that problem, size and thread count takes the fastest, in this process
and in later ones, until the kernels are others (`edition`) or `shorthaul cache clear --only tuning`.
For an exact problem all candidates give the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from shorthaul.conv.aten import memory_format
from shorthaul.conv.execution import execute as kernels
from shorthaul.conv.execution.plan import forget_plans, plan_forward
from shorthaul.conv.methods.base import ConvSchedule
from shorthaul.conv.planning.choice import Sizes, candidate_schedules, tuning_key
from shorthaul.conv.problem import ConvProblem
from shorthaul.jit import Candidate, Choice, autotune
from shorthaul.jit.compiling.loading import compiling, gather_pending, wait_for_compilers
from shorthaul.jit.compiling.progress import progress_on_terminal
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
    plans = [
        functools.partial(plan_forward, problem, sizes, each, kernel_threads())
        for each in schedules
    ]
    with progress_on_terminal(not is_quiet) as show:

        @functools.cache  # by the first candidate that runs: a remembered choice compiles nothing
        def compile_all() -> None:
            if gather_pending(plans, is_urgent=True):
                wait_for_compilers(functools.partial(show, f"compiling {problem.describe()}"))

        candidates = _candidates(problem, sizes, schedules, compile_all)
        places = {each.name: place for place, each in enumerate(candidates)}

        def show_candidate(name: str) -> None:
            show(f"tuning {problem.describe()}", places[name] + 1, len(candidates))

        with compiling("wait"):  # a candidate that did not compile is left out, with its reason
            choice = measure(key, candidates, on_progress=show_candidate)
    _tuned[key, settings.cache_directory] = choice
    forget_plans()
    return choice


def _candidates(
    problem: ConvProblem,
    sizes: Sizes,
    schedules: Sequence[ConvSchedule],
    compile_all: Callable[[], None],
) -> list[Candidate]:
    batch, *spatial = sizes
    own = torch.Generator().manual_seed(0)  # the user's numbers go on where they were

    def draw(*shape: int) -> torch.Tensor:
        values = torch.randn(shape, generator=own, dtype=torch.float32, device="cpu")
        return values.to(problem.dtype)

    image = draw(batch, problem.in_channels, *spatial)
    image = image.contiguous(memory_format=memory_format(problem))
    weight = draw(*problem.weight_shape)
    bias = (
        torch.zeros(problem.out_channels, dtype=problem.dtype, device="cpu")
        if problem.has_bias
        else None
    )

    def candidate(schedule: ConvSchedule) -> Candidate:
        def run() -> None:
            compile_all()
            kernels.run_forward(problem, image, weight, bias, schedule=schedule)

        return Candidate(schedule.describe(), run)

    return [candidate(each) for each in schedules]
