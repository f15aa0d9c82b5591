"""A method is one object: that of the page has nothing but itself, and is chosen, estimated, tuned, run and explained."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import shorthaul as sh
from shorthaul.conv import estimate
from shorthaul.conv.execution.plan import forget_plans, plan_forward
from shorthaul.conv.execution.tuning import tune_schedule
from shorthaul.conv.methods import METHODS
from shorthaul.conv.planning.choice import (
    candidate_schedules,
    choose_schedule,
    find_schedule,
    remembered_schedule,
)
from shorthaul.conv.problem import ConvProblem
from shorthaul.jit import Candidate, Choice
from tests.conv.tolerances import require_close

PROBLEM = ConvProblem(7, 5, (1, 3, 3), padding=((0, 0), (1, 1), (1, 1)), has_bias=True)
SIZES = (2, 1, 9, 11)

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "add-a-convolution-method.md"


def read_page() -> ModuleType:
    """The page's program as a module."""
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    module = ModuleType("added_method")
    sys.modules[module.__name__] = module
    exec(compile(block, PAGE, "exec"), module.__dict__)
    del sys.modules[module.__name__]
    return module


DIRECT = read_page()


@pytest.fixture(autouse=True)
def added() -> Iterator[None]:
    forget_plans()
    METHODS.insert(0, method := DIRECT.Direct())
    yield
    METHODS.remove(method)
    forget_plans()


def test_it_is_chosen_and_estimated() -> None:
    assert choose_schedule(PROBLEM, SIZES) == DIRECT.Direct().schedule(None)
    assert estimate(PROBLEM, 2, (1, 9, 11), threads=3).ours_bytes == 3 * 192


def test_it_is_tuned_and_remembered(tmp_path: Path) -> None:
    def measure(key: str, candidates: list[Candidate], **_: object) -> Choice:
        (mine,) = (each for each in candidates if each.name.startswith("direct"))
        mine.run()
        return sh.jit.autotune(key, [mine])

    methods = [each.method for each in candidate_schedules(PROBLEM, SIZES)]
    assert methods[0] == "direct"
    assert "window" in methods
    with sh.settings.override(cache_directory=tmp_path, autotune="on"):
        tune_schedule(PROBLEM, SIZES, measure=measure, is_quiet=True)
        found = remembered_schedule(PROBLEM, SIZES, torch.get_num_threads())
        assert found is not None
        assert found.method == "direct"
        assert find_schedule(PROBLEM, SIZES, torch.get_num_threads()) == found


def test_it_runs_whoever_calls_it() -> None:
    image, weight, bias = torch.randn(2, 7, 9, 11), torch.randn(5, 7, 3, 3), torch.randn(5)
    with sh.meter() as meter, torch.no_grad():
        expected = torch.conv2d(image, weight, bias, padding=1)
        for _ in range(2):  # by the operator, then as a known call
            require_close(sh.conv2d(image, weight, bias, padding=1), expected)
        added = sh.conv2d(image, weight, padding=1)
        back = sh.conv_transpose2d(added, weight, padding=1)
        require_close(back, torch.conv_transpose2d(added, weight, padding=1))
    assert meter.launches["conv_direct"] == 4
    leaves = [each.requires_grad_() for each in (image, weight, bias)]
    wanted = torch.autograd.grad(torch.conv2d(*leaves, padding=1).square().sum(), leaves)
    for _ in range(2):  # by operators, then as a step of training
        got = torch.autograd.grad(sh.conv2d(*leaves, padding=1).square().sum(), leaves)
        for one, other in zip(got, wanted, strict=True):
            require_close(one, other)


def test_it_is_explained() -> None:
    plan = plan_forward(PROBLEM, SIZES, None, 1)
    text = sh.explain(plan)
    assert PROBLEM.describe() in text
    assert "by direct 1x1" in text
    assert "192 B per thread" in text
    assert DIRECT.LOOPS in text
