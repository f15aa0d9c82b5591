"""Drawn layers on drawn graphs against plain PyTorch in float64: after every pass by the reference
backend, by generated kernels, without each pass, within budgets, and by differences of outputs.

What fails prints its layer and graph; `draw_case(seed, ...)` makes it again.
"""

from dataclasses import replace

import pytest
import torch

from shorthaul.relational.passes import PASS_NAMES
from tests.relational.drawn_checks import (
    check_kernels,
    check_stages,
    compile_case,
    draw_case,
    run_kernels,
)
from tests.relational.drawn_layers import CHOICES, UNARY, draw_layer

QUICK, LONG = range(60), range(1000, 5000)
QUICK_CHOICES, LONG_CHOICES = range(100, 108), range(5000, 6000)
QUICK_KERNELS, LONG_KERNELS = range(10), range(1000, 1400)


def test_everything_is_drawn():
    drawn = {each.operation for seed in range(400) for each in draw_layer(seed).instructions}
    assert drawn > set(UNARY)
    assert len(drawn) > len(UNARY) + len(CHOICES)


def test_the_comparison_sees_a_wrong_number():
    case = draw_case(0)
    compiled = compile_case(case)
    check_stages(case, compiled)
    name, right = next(iter(case.gradients.items()))
    wrong = replace(case, gradients={**case.gradients, name: right + 1e-6})
    with pytest.raises(AssertionError, match=f"gradient of {name}"):
        check_stages(wrong, compiled)
    with pytest.raises(AssertionError, match="result 0"):
        check_stages(replace(case, results=tuple(each + 1e-6 for each in case.results)), compiled)


def _check_stages(seed: int) -> bool:
    case = draw_case(seed)
    if case is not None:
        check_stages(case, compile_case(case))
    return case is not None


def _check_choices(seed: int) -> None:
    """Without each pass, some gradients and none, and what is saved limited: plans are verified."""
    case = draw_case(seed)
    if case is None:
        return
    for name in PASS_NAMES:
        check_stages(case, compile_case(case, without=[name]))
    compile_case(case, without=PASS_NAMES)
    for budget_bytes in (0, 1000, 10_000):
        compile_case(case, budget_bytes=budget_bytes)
    names = list(case.gradients)
    for gradients in ((), names[:1], names[1:]):
        check_stages(case, compile_case(case, gradients=gradients))


def _check_kernels(seed: int) -> None:
    """Kernels in one of the ways that they can be asked for, on one thread and on several."""
    dtype = torch.float32 if seed % 4 == 1 else torch.float64
    case = draw_case(seed, 20, dtype)
    if case is None:
        return
    without = (PASS_NAMES[seed // 4 % len(PASS_NAMES)],) if seed % 4 == 2 else ()
    budget_bytes = 3000 * (seed // 4 % 3) if seed % 4 == 3 else None
    compiled = compile_case(case, dtype, without, budget_bytes=budget_bytes)
    check_kernels(case, compiled)
    one, several = (run_kernels(case, compiled, threads) for threads in (1, 3))
    for name, value in one.items():
        assert torch.equal(value, several[name]), f"{name} depends on the threads\n{case}"


def test_numbers_stay_through_every_pass():
    assert sum(map(_check_stages, QUICK)) > 0.9 * len(QUICK)  # nearly all can be compared


def test_numbers_stay_without_any_pass_and_within_any_budget():
    for seed in QUICK_CHOICES:
        _check_choices(seed)


def test_generated_kernels_agree_with_plain_pytorch():
    for seed in QUICK_KERNELS:
        _check_kernels(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_layers_through_every_pass():
    assert sum(map(_check_stages, LONG)) > 0.9 * len(LONG)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_layers_without_any_pass_and_within_any_budget():
    for seed in LONG_CHOICES:
        _check_choices(seed)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_layers_through_generated_kernels():
    for seed in LONG_KERNELS:
        _check_kernels(seed)
