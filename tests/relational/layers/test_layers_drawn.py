"""Every option of PyG's layers that ours take, and `accelerate` with it, drawn: outputs and gradients.

In float64, ours is PyG's to the last places. In float32, its kernels are as near to PyG in float64 as
PyG in float32 is, or as near as rounding of what goes in permits.
"""

import copy

import pytest
import torch

from shorthaul.relational import accelerate
from tests.relational.layers import comparing

pytest.importorskip("torch_geometric.nn")

from tests.relational.layers.drawn_homogeneous import DRAWERS, draw_case

# PyG's own of sparse matrices, and of scatter_reduce on the way.
pytestmark = pytest.mark.filterwarnings("ignore:.*scatter.*")


def _make_ours(case, theirs, number):
    """By our constructor, or from PyG's own layer."""
    if number % 2:
        return case.make_ours(theirs)
    ours = copy.deepcopy(theirs)
    report = accelerate(ours)
    assert not report.left, f"{report.left}: {case.describe()}"
    return ours


def _check_in_float64(name, number, backend):
    case = draw_case(name, number)
    theirs = case.make_theirs(number)
    ours = _make_ours(case, theirs, number)
    comparing.use_backend(ours, backend)
    expected = comparing.run_layer(theirs, case.call, case.floats, torch.float64)
    got = comparing.run_layer(ours, case.call_ours, case.floats, torch.float64)
    comparing.assert_close(
        got, expected, comparing.allow_double(expected), f"{name} {number}: {case.describe()}"
    )


def _check_in_float32(name, number):
    case = draw_case(name, number)
    theirs = case.make_theirs(number)
    ours = _make_ours(case, theirs, number)
    expected = comparing.run_layer(theirs, case.call, case.floats, torch.float64)
    single = comparing.run_layer(copy.deepcopy(theirs), case.call, case.floats, torch.float32)
    moved = copy.deepcopy(theirs)
    floats = comparing.shift_by_one_place(moved, case.floats)
    shifted = comparing.run_layer(moved, case.call, floats, torch.float64)
    got = comparing.run_layer(ours, case.call_ours, case.floats, torch.float32)
    allowed = comparing.allow_single(expected, single, shifted)
    comparing.assert_close(got, expected, allowed, f"{name} {number}: {case.describe()}")


@pytest.mark.parametrize("name", DRAWERS)
def test_same_as_pyg_in_float64(name):
    for number in range(20):
        _check_in_float64(name, number, "reference")


@pytest.mark.parametrize("name", DRAWERS)
def test_kernels_are_as_near_as_pyg_in_float32(name):
    _check_in_float32(name, 100)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("first", range(20, 420, 100))
@pytest.mark.parametrize("name", DRAWERS)
def test_more_of_the_same_in_float64(name, first):
    for number in range(first, first + 100):
        _check_in_float64(name, number, "reference")


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("first", range(500, 600, 20))
@pytest.mark.parametrize("name", DRAWERS)
def test_more_kernels_in_float32_and_float64(name, first):
    for number in range(first, first + 20):
        if number % 4:
            _check_in_float32(name, number)
        else:
            _check_in_float64(name, number, "auto")


def test_what_is_compared_can_differ():
    one, other = {"out": torch.ones(3)}, {"out": torch.tensor([1.0, 1.0, 1.001])}
    allowed = comparing.allow_single(one, one, one)
    comparing.assert_close(one, one, allowed, "")
    for wrong in (other, {"out": torch.full((3,), torch.nan)}, {"out": torch.ones(4)}, {}):
        with pytest.raises(AssertionError):
            comparing.assert_close(wrong, one, allowed, "")
