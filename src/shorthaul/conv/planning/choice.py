"""How a convolution is carried out: chosen without measuring, or listed for the tuner to measure.

>>> from shorthaul.conv.problem import ConvProblem
>>> schedule = choose_schedule(ConvProblem(64, 64, (1, 3, 3)), (1, 1, 56, 56))
>>> schedule.method, schedule.depth_chunk, schedule.is_specialized
('window', 4608, True)

A schedule never changes what is summed in which order within one method, so any two schedules of
the same method give the same bits.
"""

from __future__ import annotations

from dataclasses import replace

from shorthaul.conv.methods import GRADIENT_METHODS, METHODS
from shorthaul.conv.methods.base import ConvSchedule, Method, can_pair, preferred
from shorthaul.conv.planning.edition import kernel_edition
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.problem.geometry import WindowTask, forward_task
from shorthaul.jit.autotune import recall_choice

Sizes = tuple[int, int, int, int]  # batch, depth, height, width of the input


def find_method(schedule: ConvSchedule) -> Method:
    """The method of a schedule."""
    every = (*METHODS, *GRADIENT_METHODS)
    return next(each for each in every if each.name == schedule.method)


def choose_schedule(problem: ConvProblem, sizes: Sizes) -> ConvSchedule:
    """The schedule that the cost model prefers.

    Threads decide how the work is cut, never the method: bits do not depend on them.
    """
    return schedule_pass(forward_task(problem, sizes[0], sizes[1:]))


def schedule_pass(task: WindowTask) -> ConvSchedule:
    """The schedule of a forward pass or of the gradient of the input: by pairs where they can be used.

    Sums of pairs have other bits than sums of widened values, so nothing but the problem decides.
    """
    if not can_pair(task):
        return schedule_widened(task)
    task = replace(task, has_pairs=True)
    return preferred(_multiplying_pairs(), task).schedule(task)


def schedule_widened(task: WindowTask) -> ConvSchedule:
    """The schedule for one pass over windows of widened values."""
    return preferred(METHODS, task).schedule(task)


def schedule_gradient(task: WindowTask) -> ConvSchedule:
    """The schedule for the gradient of the weights."""
    return preferred(GRADIENT_METHODS, task).schedule(task)


def _multiplying_pairs() -> list[Method]:
    return [each for each in METHODS if each.multiplies_pairs]


def candidate_schedules(problem: ConvProblem, sizes: Sizes) -> tuple[ConvSchedule, ...]:
    """Schedules worth measuring, the cost model's choice first; for exact problems all give the same bits.

    Where bfloat16 is multiplied two by two, only those that do so: the others would give other bits.
    """
    task = forward_task(problem, sizes[0], sizes[1:])
    first, methods = schedule_pass(task), METHODS
    if first.has_pairs:
        task, methods = replace(task, has_pairs=True), _multiplying_pairs()
    others = (
        each for method in methods if method.applies(task) for each in method.candidates(task)
    )
    return tuple(dict.fromkeys((*find_method(first).refine(first), *others)))


def tuning_key(problem: ConvProblem, sizes: Sizes, threads: int) -> str:
    """What a measurement holds for, besides the processor."""
    words = f"{problem.describe()} {'x'.join(map(str, sizes))} threads {threads}"
    return f"conv schedule {words} kernels {kernel_edition()}"


def find_schedule(problem: ConvProblem, sizes: Sizes, threads: int) -> ConvSchedule:
    """The schedule that a call takes: what was measured here, else what the cost model prefers."""
    return remembered_schedule(problem, sizes, threads) or choose_schedule(problem, sizes)


def remembered_schedule(problem: ConvProblem, sizes: Sizes, threads: int) -> ConvSchedule | None:
    """The schedule that was measured to be the fastest here; `None` where nothing was measured."""
    choice = recall_choice(tuning_key(problem, sizes, threads))
    if choice is None:
        return None
    named = {each.describe(): each for each in candidate_schedules(problem, sizes)}
    return named.get(choice.name)
