"""What is chosen without measuring, and what the tuner may choose among."""

import math

import pytest
import torch
from hypothesis import given

from shorthaul.conv import schedule
from shorthaul.conv.geometry import forward_task, grad_input_tasks
from shorthaul.conv.machine import AVX2, AVX512, NEON, SSE, VectorMachine, this_machine
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.schedule import (
    candidate_schedules,
    choose_schedule,
    prefers_planes,
    schedule_gradient,
    schedule_task,
)
from tests.conv.problems import Case, cases


@given(cases())
def test_the_phases_of_an_input_gradient_write_each_position_once(case: Case) -> None:
    problem = case.problem
    if problem.padding_mode != "zeros":
        return
    written = torch.zeros(case.sizes, dtype=torch.int64)
    taps_used = 0
    for task, _ in grad_input_tasks(problem, case.batch, case.sizes):
        assert task.shape.stride == (1, 1, 1)
        taps_used += math.prod(task.shape.kernel)
        d, h, w = (
            slice(first, None, step) for first, step in zip(task.first, task.step, strict=True)
        )
        assert written[d, h, w].shape == task.out_sizes
        written[d, h, w] += 1
    assert int(written.max()) <= 1
    assert taps_used <= math.prod(problem.kernel)


@pytest.mark.parametrize("machine", [SSE, AVX2, AVX512, NEON])
def test_tiles_fit_the_registers_and_hide_the_latency(machine) -> None:
    for rows, vectors in machine.tiles():
        assert rows * vectors + min(rows, vectors) + 1 <= machine.registers
        assert rows * vectors >= 8


def test_small_work_takes_the_general_kernel() -> None:
    problem = ConvProblem(64, 64, (1, 3, 3))
    assert not choose_schedule(problem, (1, 1, 8, 8), 1).is_specialised
    assert choose_schedule(problem, (64, 1, 56, 56), 1).is_specialised


def test_candidates_start_with_the_cost_models_choice() -> None:
    problem = ConvProblem(64, 96, (1, 3, 3), layout="channels_last")
    sizes = (8, 1, 56, 56)
    candidates = candidate_schedules(problem, sizes)
    assert candidates[0] == choose_schedule(problem, sizes, 1)
    assert len(set(candidates)) == len(candidates)


def test_contiguous_images_and_few_channels_may_also_be_planar() -> None:
    sizes = (1, 1, 56, 56)
    for problem, expected in (
        (ConvProblem(3, 64, (1, 3, 3)), {"window", "planar"}),
        (ConvProblem(3, 64, (1, 3, 3), layout="channels_last"), {"window"}),
        (ConvProblem(64, 3, (1, 3, 3), layout="channels_last"), {"window", "planar"}),
        (
            ConvProblem(64, 64, (1, 3, 3), groups=64, layout="channels_last"),
            {"window", "planar", "depthwise", "sliding"},
        ),
    ):
        assert {each.method for each in candidate_schedules(problem, sizes)} == expected


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize(("channels", "groups"), [((64, 1), 1), ((32, 32), 8), ((32, 32), 32)])
def test_the_weight_gradient_has_tiles_of_windows_whatever_the_forward_method(
    channels: tuple[int, int], groups: int, layout: str
) -> None:
    task = forward_task(
        ConvProblem(*channels, (1, 3, 3), groups=groups, layout=layout), 2, (1, 32, 32)
    )
    assert schedule_task(task).method in ("planar", "depthwise", "sliding")
    schedule = schedule_gradient(task)
    assert schedule.method == "window"
    assert not schedule.is_specialised
    assert (schedule.rows, schedule.vectors) == this_machine().tiles()[0]


@pytest.mark.parametrize(("machine", "long_are_planes"), [(AVX2, False), (AVX512, True)])
def test_contiguous_images_of_few_channels_are_planes_under_short_windows_or_with_many_registers(
    machine: VectorMachine, long_are_planes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "this_machine", lambda: machine)
    for kernel, are_planes in ((3, True), (7, long_are_planes)):
        problem = ConvProblem(3, 64, (1, kernel, kernel), stride=(1, 2, 2))
        task = forward_task(problem, 1, (1, 220 + kernel, 220 + kernel))
        assert prefers_planes(task, machine.lanes(4)) == are_planes
