"""What is chosen without measuring, and what the tuner may choose among."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.conv.methods.base import ConvSchedule
from shorthaul.conv.methods.depthwise import DEPTHWISE_TILE
from shorthaul.conv.methods.planar import prefers_planes
from shorthaul.conv.methods.window_blocks import choose_windows, skips_padding
from shorthaul.conv.planning.choice import (
    candidate_schedules,
    choose_schedule,
    schedule_gradient,
    schedule_pass,
)
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.problem.geometry import forward_task, grad_input_tasks
from shorthaul.conv.problem.machine import AVX2, AVX512, NEON, SSE, VectorMachine, this_machine
from shorthaul.errors import ConvolutionError
from tests.conv.machines import hold_choices_to
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
    assert not choose_schedule(problem, (1, 1, 8, 8)).is_specialized
    assert choose_schedule(problem, (64, 1, 56, 56)).is_specialized


def test_candidates_start_with_the_cost_models_choice() -> None:
    problem = ConvProblem(64, 96, (1, 3, 3), layout="channels_last")
    sizes = (8, 1, 56, 56)
    candidates = candidate_schedules(problem, sizes)
    assert candidates[0] == choose_schedule(problem, sizes)
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
    assert schedule_pass(task).method in ("planar", "depthwise", "sliding", "grouped")
    schedule = schedule_gradient(task)
    if groups == 32:
        assert (schedule.rows, schedule.vectors) == DEPTHWISE_TILE
    else:
        assert not schedule.is_specialized
        assert (schedule.rows, schedule.vectors) == this_machine().tiles()[0]


@pytest.mark.parametrize(("machine", "long_are_planes"), [(AVX2, False), (AVX512, True)])
def test_contiguous_images_of_few_channels_are_planes_under_short_windows_or_with_many_registers(
    machine: VectorMachine, long_are_planes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_choices_to(machine, monkeypatch)
    for kernel, are_planes in ((3, True), (7, long_are_planes)):
        problem = ConvProblem(3, 64, (1, kernel, kernel), stride=(1, 2, 2))
        task = forward_task(problem, 1, (1, 220 + kernel, 220 + kernel))
        assert prefers_planes(task, machine.lanes(4)) == are_planes


@settings(deadline=None, max_examples=300)
@given(
    cases(),
    st.sampled_from([SSE, AVX2, AVX512, NEON]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_no_schedule_reads_windows_where_they_are_not(
    case: Case, machine: VectorMachine, dtype: torch.dtype
) -> None:
    # As many channels as make the work worth a kernel of its own, and outputs of a group one vector.
    lanes = machine.lanes(dtype.itemsize)
    problem = replace(
        case.problem,
        dtype=dtype,
        in_channels=64 * case.problem.groups,
        out_channels=lanes * case.problem.groups,
    )
    sizes = (64 * case.batch, *case.sizes)
    with pytest.MonkeyPatch.context() as patch:
        hold_choices_to(machine, patch)
        tasks = [forward_task(problem, sizes[0], sizes[1:])]
        chosen = [(tasks[0], each) for each in candidate_schedules(problem, sizes)]
        chosen += [(tasks[0], schedule_gradient(tasks[0]))]
        for task, _ in grad_input_tasks(problem, sizes[0], sizes[1:]):
            chosen.append((task, schedule_pass(task)))
        for task, each in chosen:
            if each.method == "window":
                windows = choose_windows(task, each)
                assert task.can_read(windows) or skips_padding(task, each)
                assert task.has_flat_windows or task.can_read(windows)


def test_windows_of_several_depths_are_not_read_from_rows_that_hold_one() -> None:
    task = forward_task(ConvProblem(16, 16, (3, 3, 3)), 1, (9, 9, 9))
    rows = ConvSchedule("window", 6, 2, strip_bytes=3000, windows="rows")
    with pytest.raises(ConvolutionError, match="from `rows`, where they are not"):
        choose_windows(task, rows)
