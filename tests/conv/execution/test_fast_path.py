"""Calls that are known: what decides whether one is, and the same results as the first time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import shorthaul as sh
from shorthaul.conv.execution import plan
from shorthaul.conv.execution.plan import forget_plans
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.problem.geometry import WindowTask
from shorthaul.errors import ConvolutionError
from tests.conv.tolerances import require_close


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    forget_plans()
    yield
    forget_plans()


def forbid_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whatever is not known already fail."""

    def refuse(*_: Any) -> None:
        raise AssertionError("was not known")

    monkeypatch.setattr("shorthaul.conv.functional._convolve", refuse)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_call_is_known_the_second_time(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, weight = torch.randn(2, 3, 6, 6).to(dtype), torch.randn(4, 3, 3, 3).to(dtype)
    first = sh.conv2d(image, weight, stride=2, activation="relu")
    forbid_planning(monkeypatch)
    again = sh.conv2d(image, weight, stride=2, activation="relu")
    assert torch.equal(first, again)
    assert again.stride() == first.stride()
    assert again.data_ptr() != first.data_ptr()


def test_what_makes_another_call(monkeypatch: pytest.MonkeyPatch) -> None:
    image, weight, bias = torch.randn(2, 8, 6, 6), torch.randn(4, 8, 3, 3), torch.randn(4)
    sh.conv2d(image, weight, bias)
    forbid_planning(monkeypatch)
    sh.conv2d(image.clone(), weight.clone(), bias.clone())  # other memory alone does not
    last = image.to(memory_format=torch.channels_last)
    others: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((image, weight), {}),
        ((last, weight, bias), {}),
        ((image[:1], weight, bias), {}),
        ((image[0], weight, bias), {}),
        ((image, weight.double().to(torch.bfloat16), bias), {}),
        ((image, weight, bias), {"padding": 1}),
        ((image, weight, bias), {"activation": "relu"}),
        ((image, weight, bias), {"exact": False}),
        ((image, weight, bias), {"stride": [1, 1]}),  # lists cannot be remembered
        ((image.clone().requires_grad_(), weight, bias), {}),
    ]
    for arguments, options in others:
        with pytest.raises(AssertionError, match="was not known"):
            sh.conv2d(*arguments, **options)
    with torch.autocast("cpu"), pytest.raises(AssertionError, match="was not known"):
        sh.conv2d(image, weight, bias)
    torch.set_num_threads(2)
    with pytest.raises(AssertionError, match="was not known"):
        sh.conv2d(image, weight, bias)


def test_calls_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MOST_PLANS", 3)
    weight = torch.randn(2, 1, 3)
    for length in range(3, 12):
        sh.conv1d(torch.randn(1, 1, length), weight)
        assert 0 < len(plan._kept) <= 3


def test_calls_that_are_known_still_obey_settings_and_look_at_shapes() -> None:
    image, weight = torch.randn(1, 3, 6, 6), torch.randn(4, 3, 3, 3)
    expected = torch.conv2d(image, weight)
    for _ in range(2):
        require_close(sh.conv2d(image, weight), expected)
    with sh.settings.override(kernels="torch"):
        assert torch.equal(sh.conv2d(image, weight), expected)
    require_close(sh.conv2d(image[:, :, :5], weight), expected[:, :, :3])
    require_close(sh.conv2d(image, weight, stride=[2, 1]), expected[:, :, ::2])
    with pytest.raises(ConvolutionError, match="should be the same"):
        sh.conv2d(image.double(), weight)


def test_an_inference_call_and_a_training_call_are_told_apart() -> None:
    tensors = torch.randn(1, 3, 6, 6), torch.randn(4, 3, 3, 3, requires_grad=True)
    with torch.no_grad():
        for _ in range(2):
            plain = sh.conv2d(*tensors, activation="relu")
    for _ in range(2):
        trained = sh.conv2d(*tensors, activation="relu")
    assert not plain.requires_grad
    assert trained.requires_grad
    assert torch.equal(plain, trained)


def test_a_new_size_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    make, planned = plan._plan, []

    def note(problem: ConvProblem, task: WindowTask, *others: Any) -> plan.ConvPlan:
        planned.append(task.in_sizes)
        return make(problem, task, *others)

    monkeypatch.setattr(plan, "_plan", note)
    weight = torch.randn(8, 4, 3, 3)
    for width in (31, 33):
        for _ in range(3):
            sh.conv2d(torch.randn(1, 4, 29, width), weight, padding=1)
        assert planned.count((1, 29, width)) == 1
