"""A call is planned once for its sizes, and anew when a better schedule is known."""

from dataclasses import replace

import pytest
import torch

from shorthaul.conv import aten, calls
from shorthaul.conv.calls import (
    APART_BYTES,
    find_schedule,
    forget_plans,
    on_forgotten_plans,
    prepare_forward,
)
from shorthaul.conv.kernels import find_view
from shorthaul.conv.packing import pack_panels
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.schedule import choose_schedule
from tests.conv.problems import Case
from tests.conv.tolerances import require_close

PROBLEM = ConvProblem(5, 19, (1, 3, 3), layout="channels_last")
SIZES = (2, 1, 9, 11)


def test_a_plan_is_kept_for_its_sizes() -> None:
    first = prepare_forward(PROBLEM, SIZES, None, 1)
    assert prepare_forward(PROBLEM, SIZES, None, 1) is first
    assert prepare_forward(PROBLEM, (3, *SIZES[1:]), None, 1) is not first


def test_a_plan_says_what_the_output_looks_like() -> None:
    for layout in ("contiguous", "channels_last"):
        call = prepare_forward(replace(PROBLEM, layout=layout), SIZES, None, 1)
        dense = torch.channels_last_3d if layout == "channels_last" else torch.contiguous_format
        output = torch.empty(2, 19, 1, 7, 9, memory_format=dense)
        assert (call.out_shape, call.out_strides) == (output.shape, output.stride())


def test_an_empty_output_needs_no_kernel() -> None:
    call = prepare_forward(PROBLEM, (0, 1, 9, 11), None, 1)
    assert call.task.flops == 0
    assert call.run() is None


def test_plans_are_forgotten_with_what_hangs_on_them(monkeypatch) -> None:
    monkeypatch.setattr(calls, "_forgetting", [])
    told = []
    on_forgotten_plans(lambda: told.append("forgotten"))
    first = prepare_forward(PROBLEM, SIZES, None, 1)
    forget_plans()
    assert told == ["forgotten"]
    assert prepare_forward(PROBLEM, SIZES, None, 1) is not first


def test_without_a_measurement_the_cost_model_chooses() -> None:
    sizes = (7, 1, 13, 17)
    assert find_schedule(PROBLEM, sizes, 1) == choose_schedule(PROBLEM, sizes, 1)


@pytest.mark.parametrize(
    "problem",
    [
        ConvProblem(8, 24, (1, 3, 3), layout="channels_last"),
        ConvProblem(8, 4, (1, 3, 3)),
        ConvProblem(24, 24, (1, 3, 3), groups=24),
        ConvProblem(24, 24, (1, 9, 9), groups=24),
        ConvProblem(32, 32, (1, 3, 3), groups=8, layout="channels_last"),
    ],
    ids=ConvProblem.describe,
)
def test_threads_leave_what_lies_between_their_workspaces_alone(problem: ConvProblem) -> None:
    image, weight, _ = Case(problem, 3, (1, 60, 70)).tensors()
    call = prepare_forward(problem, (3, 1, 60, 70), None, 3)
    workspace = torch.full((call.workspace_bytes + 64,), 171, dtype=torch.uint8)
    workspace = workspace[-workspace.data_ptr() % 64 :][: call.workspace_bytes]
    output = torch.empty_strided(call.out_shape, call.out_strides)
    torch.set_num_threads(3)
    view = find_view(call, problem.weight_shape, weight.shape, weight.stride())
    packed = pack_panels(weight, view, call.panel, call.lanes, call.real)
    call.run(image, packed, None, None, output, workspace, call.numbers)
    of_threads = workspace.view(3, call.thread_bytes + APART_BYTES)
    assert (of_threads[:, call.thread_bytes :] == 171).all()
    assert (of_threads[:, : call.thread_bytes] != 171).any(dim=1).all()
    require_close(output, aten.run_forward(problem, image, weight))
