"""Plans are pure: what they promise about sizes, tiles and memory."""

import math

import pytest
import torch
from hypothesis import given

from shorthaul.conv.geometry import forward_task, grad_input_tasks
from shorthaul.conv.machine import AVX2, AVX512, NEON, SSE, this_machine
from shorthaul.conv.plans import plan_blocks, plan_gradient, plan_planes
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.schedule import (
    candidate_schedules,
    choose_schedule,
    schedule_gradient,
    schedule_task,
)
from tests.conv.problems import Case, cases

# The papers' twelve layers: input channels, size, output channels, kernel, stride.
LAYERS = (
    (3, 227, 96, 11, 4), (3, 231, 96, 11, 4), (3, 227, 64, 7, 2), (64, 224, 64, 7, 2),
    (96, 24, 256, 5, 1), (256, 12, 512, 3, 1), (3, 224, 64, 3, 1), (64, 112, 128, 3, 1),
    (64, 56, 64, 3, 1), (128, 28, 128, 3, 1), (256, 14, 256, 3, 1), (512, 7, 512, 3, 1),
)  # fmt: skip


def layer(index: int, layout: str) -> tuple[ConvProblem, tuple[int, int, int]]:
    in_channels, size, out_channels, kernel, stride = LAYERS[index]
    problem = ConvProblem(
        in_channels, out_channels, (1, kernel, kernel), (1, stride, stride), layout=layout
    )
    return problem, (1, size, size)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("batch", [1, 8, 128])
@pytest.mark.parametrize("index", range(12))
def test_the_twelve_layers_need_less_than_a_megabyte_per_thread(
    index: int, batch: int, threads: int, layout: str
) -> None:
    problem, sizes = layer(index, layout)
    task = forward_task(problem, batch, sizes)
    schedule = choose_schedule(problem, (batch, *sizes), threads)
    assert plan_blocks(task, schedule, threads).thread_bytes < 1_000_000
    assert plan_gradient(task, schedule_gradient(task), threads).thread_bytes < 1_000_000


def test_blocks_of_the_weight_gradient_do_not_depend_on_threads() -> None:
    # Each block is summed by itself, so its cut decides bits.
    for index in range(12):
        problem, sizes = layer(index, "contiguous")
        task = forward_task(problem, 8, sizes)
        plans = [plan_gradient(task, schedule_gradient(task), threads) for threads in (1, 2, 7, 64)]
        assert len({(plan.block_rows, plan.block_columns) for plan in plans}) == 1


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


def test_a_planar_block_is_never_larger_than_it_must_be() -> None:
    problem = ConvProblem(64, 3, (1, 3, 3), padding=((0, 0), (1, 1), (1, 1)))
    schedule = choose_schedule(problem, (1, 1, 256, 256), 1)
    assert schedule.method == "planar"
    plan = plan_planes(forward_task(problem, 1, (1, 256, 256)), schedule, 1)
    # Several rows per block: with one, every image row would be packed three times.
    assert plan.block_rows >= 4
    assert plan.thread_bytes < 300_000


def test_planes_of_one_small_image_are_shared_by_all_threads() -> None:
    problem = ConvProblem(3, 16, (1, 5, 5))
    task, schedule = (
        forward_task(problem, 1, (1, 130, 130)),
        choose_schedule(problem, (1, 1, 130, 130), 1),
    )
    assert schedule.method == "planar"
    assert plan_planes(task, schedule, 1).block_rows == 126
    assert 126 / plan_planes(task, schedule, 2).block_rows >= 4


@pytest.mark.parametrize("machine", [SSE, AVX2, AVX512, NEON])
def test_tiles_fit_the_registers_and_hide_the_latency(machine) -> None:
    for rows, vectors in machine.tiles():
        assert rows * vectors + min(rows, vectors) + 1 <= machine.registers
        assert rows * vectors >= 8


def test_small_work_takes_the_general_kernel() -> None:
    problem = ConvProblem(16, 16, (1, 3, 3))
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
