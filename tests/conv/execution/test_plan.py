"""A call is planned once for its sizes, and anew when a better schedule is known."""

from dataclasses import replace

import pytest
import torch

from shorthaul.conv import aten
from shorthaul.conv.execution.execute import run_forward
from shorthaul.conv.execution.packing import pack
from shorthaul.conv.execution.plan import (
    APART_BYTES,
    forget_plans,
    plan_forward,
    plan_grad_input,
    plan_grad_weight,
)
from shorthaul.conv.planning.choice import choose_schedule, find_schedule
from shorthaul.conv.problem import ConvProblem
from tests.conv.problems import Case
from tests.conv.tolerances import require_close

PROBLEM = ConvProblem(5, 19, (1, 3, 3), layout="channels_last")
SIZES = (2, 1, 9, 11)


def test_a_plan_is_kept_for_its_sizes() -> None:
    first = plan_forward(PROBLEM, SIZES, None, 1)
    assert plan_forward(PROBLEM, SIZES, None, 1) is first
    assert plan_forward(PROBLEM, (3, *SIZES[1:]), None, 1) is not first


def test_a_plan_says_what_the_output_looks_like() -> None:
    for layout in ("contiguous", "channels_last"):
        plan = plan_forward(replace(PROBLEM, layout=layout), SIZES, None, 1)
        dense = torch.channels_last_3d if layout == "channels_last" else torch.contiguous_format
        output = torch.empty(2, 19, 1, 7, 9, memory_format=dense)
        assert (plan.out_shape, plan.out_strides) == (output.shape, output.stride())


def test_an_empty_output_needs_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shorthaul.conv.execution.execute.plan_forward", None)
    output = run_forward(PROBLEM, torch.empty(0, 5, 1, 9, 11), torch.empty(19, 5, 3, 3))
    assert output.shape == (0, 19, 1, 7, 9)


def test_plans_of_every_kind_are_forgotten_together() -> None:
    make = (
        lambda: plan_forward(PROBLEM, SIZES, None, 1),
        lambda: plan_grad_input(PROBLEM, SIZES, 1),
        lambda: plan_grad_weight(PROBLEM, SIZES, 1),
    )
    first = [each() for each in make]
    assert all(each() is kept for each, kept in zip(make, first, strict=True))
    forget_plans()
    assert not [each for each, kept in zip(make, first, strict=True) if each() is kept]


def test_without_a_measurement_the_cost_model_chooses() -> None:
    sizes = (7, 1, 13, 17)
    assert find_schedule(PROBLEM, sizes, 1) == choose_schedule(PROBLEM, sizes)


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
    plan = plan_forward(problem, (3, 1, 60, 70), None, 3)
    workspace = torch.full((plan.workspace_bytes + 64,), 171, dtype=torch.uint8)
    workspace = workspace[-workspace.data_ptr() % 64 :][: plan.workspace_bytes]
    output = torch.empty_strided(plan.out_shape, plan.out_strides)
    torch.set_num_threads(3)
    packed = pack(plan.weights, plan.canonical, weight)
    addresses = (each.data_ptr() for each in (image, packed, output, workspace))
    of_image, of_packed, of_output, of_workspace = addresses
    plan.run_at(of_image, of_packed, None, None, of_output, of_workspace)
    of_threads = workspace.view(3, plan.thread_bytes + APART_BYTES)
    assert (of_threads[:, plan.thread_bytes :] == 171).all()
    assert (of_threads[:, : plan.thread_bytes] != 171).any(dim=1).all()
    require_close(output, aten.run_forward(problem, image, weight))
