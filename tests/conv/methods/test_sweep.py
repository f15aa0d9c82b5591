"""The sweep kernel: what a person reads, and the same bits as the other kernels."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import shorthaul.conv.methods.sweep as sweep_module
from shorthaul.conv.execution.execute import run_forward, run_grad_input
from shorthaul.conv.execution.plan import forget_plans, plan_grad_input
from shorthaul.conv.methods.base import ConvSchedule
from shorthaul.conv.methods.sweep import (
    SweepKernel,
    can_sweep,
    emit_sweep_kernel,
    plan_sweep,
    sweep_machine,
    sweep_schedule,
)
from shorthaul.conv.planning.choice import candidate_schedules, choose_schedule, schedule_pass
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.problem.geometry import KernelShape, WindowTask, forward_task
from shorthaul.conv.problem.machine import AVX2, AVX512, NEON, VectorMachine, this_machine
from tests.conv.machines import hold_choices_to
from tests.conv.problems import Case

CHANNELS = min(8, this_machine().lanes(4))  # of a group
SHAPE = KernelShape(8, 8, 4, (1, 3, 3), (1, 1, 1), (1, 1, 1))
PROBLEM = ConvProblem(
    4 * CHANNELS,
    4 * CHANNELS,
    (1, 3, 3),
    padding=((0, 0), (1, 2), (1, 1)),
    groups=4,
    has_bias=True,
)
WINDOW = ConvSchedule(
    "window", *this_machine().tiles()[0], is_specialized=False, strip_bytes=128 * 1024
)


def sweep(problem: ConvProblem, sizes: tuple[int, int, int], **changes: object) -> ConvSchedule:
    task = forward_task(problem, 2, sizes)
    assert can_sweep(task)
    return replace(sweep_schedule(task), **changes)


def test_two_groups_share_a_vector() -> None:
    source = emit_sweep_kernel(SweepKernel(torch.float32, True, None, AVX512, 9, SHAPE, 2))
    assert "x 16 output channels of 2 groups in turn\n" in source.text
    assert "#define SHORTHAUL_LANES 16\n" in source.text
    assert "SweepBlock<Value, Activation, channels_last, 3, 3, 8, 2, 1, 1>" in source.text


def test_the_head_says_what_it_is() -> None:
    kernel = SweepKernel(torch.float32, True, None, AVX512.halved(), 9, SHAPE)
    source = emit_sweep_kernel(kernel)
    assert source.name == "conv_sweep_8to8_1x3x3_g4"
    assert "9 output rows x 3 outputs that share an image column x 8 output channels" in source.text
    assert "#define SHORTHAUL_LANES 8\n" in source.text
    assert "SweepBlock<Value, Activation, channels_last, 3, 3, 8, 1, 1, 1>" in source.text


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"stride": (1, 2, 1), "dilation": (1, 2, 1), "padding_mode": "reflect"},
        {"kernel": (1, 2, 5), "padding": ((0, 0), (0, 1), (3, 4)), "padding_mode": "circular"},
        {"kernel": (1, 1, 2), "padding": ((0, 0), (0, 0), (5, 6)), "has_bias": False},
        {"in_channels": 12, "activation": "relu"},
        {"in_channels": 36, "out_channels": 3 * CHANNELS, "groups": 3},  # without partners
        {"in_channels": 11, "out_channels": CHANNELS, "groups": 1, "activation": "gelu"},
        {"dtype": torch.bfloat16, "activation": "hardswish"},
        {"dtype": torch.float16},
        {
            "dtype": torch.float64,
            "in_channels": 2 * CHANNELS,
            "out_channels": 2 * CHANNELS,
            "padding_mode": "replicate",
        },
    ],
    ids=str,
)
def test_it_gives_the_bits_of_the_window_kernel(changes: dict[str, object], layout: str) -> None:
    problem = replace(PROBLEM, layout=layout, **changes)
    for sizes in ((1, 9, 25), (1, 12, 8), (3, 4, 7)):
        image, weight, bias = Case(problem, 2, sizes).tensors()
        got = run_forward(problem, image, weight, bias, schedule=sweep(problem, sizes))
        assert torch.equal(got, run_forward(problem, image, weight, bias, schedule=WINDOW))


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_neither_blocks_nor_threads_nor_tiles_change_a_bit(layout: str) -> None:
    problem, sizes = replace(PROBLEM, layout=layout), (1, 23, 37)
    image, weight, bias = Case(problem, 2, sizes).tensors()
    residual = torch.randn_like(run_forward(problem, image, weight, bias))
    for added in (None, residual):
        expected = run_forward(problem, image, weight, bias, added, schedule=WINDOW)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            # The smallest strips hold a few columns of one tile.
            for changes in ({}, {"strip_bytes": 3 * 1024}, {"rows": 5, "strip_bytes": 9 * 1024}):
                schedule = sweep(problem, sizes, **changes)
                got = run_forward(problem, image, weight, bias, added, schedule=schedule)
                assert torch.equal(got, expected)


@pytest.fixture
def plans_anew() -> Iterator[None]:
    """Plans that a test made for another machine are not those of the next."""
    yield
    forget_plans()


@pytest.mark.skipif(this_machine().lanes(4) < 8, reason="there are no vectors of eight")
@pytest.mark.usefixtures("plans_anew")
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_a_machine_of_sixteen_registers_gives_the_same_bits(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, sizes = replace(PROBLEM, layout=layout), (1, 13, 21)
    image, weight, bias = Case(problem, 2, sizes).tensors()
    expected = run_forward(problem, image, weight, bias, schedule=WINDOW)
    monkeypatch.setattr(sweep_module, "this_machine", lambda: AVX2)
    schedule = sweep(problem, sizes)
    assert schedule.rows == 4
    assert sweep_machine(forward_task(problem, 2, sizes)) is AVX2
    assert torch.equal(run_forward(problem, image, weight, bias, schedule=schedule), expected)


@pytest.mark.skipif(this_machine().registers <= 16, reason="left to the tuner there")
@pytest.mark.usefixtures("plans_anew")
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_it_writes_the_phases_of_a_strided_gradient(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = replace(PROBLEM, layout=layout, stride=(1, 2, 2), has_bias=False)
    sizes = (1, 12, 19)
    image, weight, _ = Case(problem, 2, sizes).tensors()
    output = run_forward(problem, image, weight)
    expected = run_grad_input(problem, output, weight, sizes)
    monkeypatch.setattr(sweep_module, "SPECIALIZED_FLOPS", 0)
    forget_plans()
    phases = plan_grad_input(problem, (2, *sizes), 1).phases
    assert "sweep" in {schedule_pass(each.task).method for each in phases}
    assert torch.equal(run_grad_input(problem, output, weight, sizes), expected)


@pytest.mark.parametrize(
    ("machine", "rows", "outputs", "groups", "lanes"),
    [
        (AVX512, {2: 14, 3: 9, 5: 5}, 16, 4, 16),
        (AVX512, {2: 14, 3: 9, 5: 5}, 8, 4, 16),
        (AVX512, {3: 9}, 8, 3, 8),
        (AVX2, {2: 6, 3: 4, 5: 2}, 8, 4, 8),
        (AVX2, {3: 4}, 4, 4, 8),
        (NEON, {3: 9}, 4, 4, 4),
    ],
    ids=lambda each: each.name if isinstance(each, VectorMachine) else "",
)
def test_tiles_fill_the_registers_and_no_more(
    machine: VectorMachine,
    rows: dict[int, int],
    outputs: int,
    groups: int,
    lanes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hold_choices_to(machine, monkeypatch)
    for columns, expected in rows.items():
        channels = groups * outputs
        problem = ConvProblem(channels, channels, (1, 3, columns), groups=groups)
        task = forward_task(problem, 1, (1, 32, 32))
        assert can_sweep(task)
        assert sweep_machine(task).lanes(4) == lanes
        assert sweep_schedule(task).rows == expected
        assert columns * expected + columns + 1 <= machine.registers


def test_what_it_is_chosen_for(monkeypatch: pytest.MonkeyPatch) -> None:
    hold_choices_to(AVX512, monkeypatch)
    large, small = (8, 1, 56, 56), (1, 1, 8, 8)
    problem = ConvProblem(32, 32, (1, 3, 3), padding=((0, 0), (1, 1), (1, 1)), groups=4)

    def method(sizes: tuple[int, int, int, int], **changes: object) -> str:
        return choose_schedule(replace(problem, **changes), sizes).method

    for layout in ("contiguous", "channels_last"):
        assert method(large, layout=layout) == "sweep"
        assert method(large, layout=layout, groups=2) == "sweep"  # as wide as a vector
        assert method(small, layout=layout) != "sweep"
        one_group = method(large, layout=layout, out_channels=8, groups=1)
        assert one_group == ("planar" if layout == "contiguous" else "sweep")
        assert method(large, layout=layout, stride=(1, 1, 2)) != "sweep"
        assert method(large, layout=layout, groups=8) != "sweep"  # half of half a vector
    hold_choices_to(AVX2, monkeypatch)
    assert method(large) != "sweep"
    assert "sweep" in {each.method for each in candidate_schedules(problem, large)}


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("size", [7, 56, 300, 5000])
@pytest.mark.parametrize("channels", [2, 8, 64])
def test_packed_columns_fit(channels: int, size: int, threads: int) -> None:
    problem = ConvProblem(4 * channels, 4 * CHANNELS, (1, 3, 3), groups=4, layout="channels_last")
    task: WindowTask = forward_task(problem, 1, (1, size, size))
    plan = plan_sweep(task, sweep_schedule(task), threads)
    assert plan.thread_bytes < 1_000_000
    assert 1 <= plan.block_rows <= task.out_sizes[1]
    assert 1 <= plan.block_columns <= task.out_sizes[2]
