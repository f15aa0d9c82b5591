"""Tuning: every candidate offered once, the winner used by later calls; the clock is a fake."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from shorthaul.conv import replace_convs
from shorthaul.conv.execution.plan import forget_plans
from shorthaul.conv.execution.tuning import tune_schedule
from shorthaul.conv.functional import conv2d
from shorthaul.conv.layer import Conv2d
from shorthaul.conv.planning.choice import (
    candidate_schedules,
    choose_schedule,
    find_schedule,
    remembered_schedule,
    tuning_key,
)
from shorthaul.conv.problem import ConvProblem
from shorthaul.jit import Candidate, Choice, autotune
from shorthaul.settings import settings

PROBLEM = ConvProblem(5, 19, (1, 3, 3), layout="channels_last")
SIZES = (1, 1, 9, 11)


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Path) -> Iterator[None]:
    """Choices of the user are neither read nor written; kernels come from the usual cache."""
    forget_plans()
    with settings.override(cache_directory=tmp_path, autotune="on"):
        yield
    forget_plans()


def preferring(wanted: str) -> Callable[..., Choice]:
    """A measurer for which `wanted` wins, and that runs nothing."""

    def measure(key: str, candidates: Sequence[Candidate], *, on_progress: object) -> Choice:
        assert wanted in {each.name for each in candidates}
        return autotune(key, [Candidate(wanted, lambda: None)])

    return measure


def test_the_cost_model_comes_first_and_names_differ() -> None:
    candidates = candidate_schedules(PROBLEM, SIZES)
    names = [each.describe() for each in candidates]
    assert len(set(names)) == len(names) > 4
    assert candidates[0].method == choose_schedule(PROBLEM, SIZES).method
    assert any(each.strip_bytes is None for each in candidates)  # the papers' whole tensor


def test_what_was_measured_is_used_and_shown() -> None:
    last = candidate_schedules(PROBLEM, SIZES)[-1]
    threads = torch.get_num_threads()
    assert find_schedule(PROBLEM, SIZES, threads) == choose_schedule(PROBLEM, SIZES)
    choice = tune_schedule(PROBLEM, SIZES, measure=preferring(last.describe()), is_quiet=True)
    assert choice.name == last.describe()
    assert remembered_schedule(PROBLEM, SIZES, threads) == last
    assert find_schedule(PROBLEM, SIZES, threads) == last
    assert remembered_schedule(PROBLEM, (2, *SIZES[1:]), threads) is None


def test_a_second_call_measures_nothing() -> None:
    first = candidate_schedules(PROBLEM, SIZES)[0].describe()
    tune_schedule(PROBLEM, SIZES, measure=preferring(first), is_quiet=True)

    def refuse(*_: object, **__: object) -> Choice:
        raise AssertionError("measured again")

    assert tune_schedule(PROBLEM, SIZES, measure=refuse, is_quiet=True).name == first


def test_random_numbers_go_on_where_they_were() -> None:
    first = candidate_schedules(PROBLEM, SIZES)[0].describe()
    before = torch.get_rng_state()
    tune_schedule(PROBLEM, SIZES, measure=preferring(first), is_quiet=True)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_remembered_name_that_is_no_candidate_is_not_used() -> None:
    key = tuning_key(PROBLEM, SIZES, 1)
    autotune(key, [Candidate("window of an older version", lambda: None)])
    assert remembered_schedule(PROBLEM, SIZES, 1) is None


def test_inexact_problems_also_try_winograd() -> None:
    problem = ConvProblem(32, 32, (1, 3, 3), exact=False)
    methods = {each.method for each in candidate_schedules(problem, (1, 1, 12, 12))}
    assert {"winograd4", "winograd2", "window"} <= methods


def test_layers_and_models_take_the_word() -> None:
    assert "tune=True" in repr(Conv2d(5, 19, 3, tune=True))
    model = nn.Sequential(nn.Conv2d(5, 19, 3))
    report = replace_convs(model, policy="always", tune=True)
    assert model[0].tune
    report.revert()
    assert not hasattr(model[0], "tune")


def test_nothing_is_tuned_while_something_watches() -> None:
    weight, image = torch.randn(4, 3, 1, 1), torch.randn(1, 3, 4, 4)

    def loss(convolve: Any, **options: bool) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda image: convolve(image, weight, **options).square().sum()

    found = torch.func.grad(loss(conv2d, tune=True))(image)
    assert not (settings.cache_directory / "tuning").exists()
    torch.testing.assert_close(found, torch.func.grad(loss(functional.conv2d))(image))


@pytest.mark.slow
def test_real_candidates_agree_to_the_bit_and_one_is_remembered() -> None:
    model = nn.Sequential(Conv2d(5, 19, 3, tune=True)).eval()
    image = torch.randn(1, 5, 9, 11).to(memory_format=torch.channels_last)
    with torch.no_grad():
        tuned = model(image)
        model[0].tune = False
        forget_plans()
        with settings.override(cache_directory=settings.cache_directory / "empty"):
            forget_plans()
            assert torch.equal(model(image), tuned)
