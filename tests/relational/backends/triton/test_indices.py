"""Indices that steps move: to where the elements are."""

from math import prod

import pytest

from shorthaul.relational.backends.triton.indices import (
    ZERO,
    At,
    aligned,
    flat,
    reshape,
    round_up,
    shift,
)


@pytest.mark.parametrize(
    ("shape", "at", "expected"),
    [
        ((2, 3), [At("a"), At("b")], "a * 3 + b"),
        ((2, 1), [At("a"), ZERO], "a"),
        ((), [], "0"),
        ((4,), [At("3")], "3"),
    ],
)
def test_positions_in_a_row(shape, at, expected):
    assert flat(shape, at) == expected


def test_rounding_up_is_to_powers_of_two():
    assert [round_up(size) for size in (0, 1, 3, 8, 9)] == [1, 1, 4, 8, 16]


@pytest.mark.parametrize(
    ("shape", "operand"), [((6,), (2, 3)), ((2, 3), (6,)), ((4, 1, 3), (2, 2, 3)), ((2, 6), (4, 3))]
)
def test_a_reshape_finds_the_same_place_in_the_row(shape, operand):
    at = [ZERO if size == 1 else At(f"i{axis}", axis) for axis, size in enumerate(shape)]
    position = flat(operand, reshape(shape, operand, at))
    for number in range(prod(shape)):
        left, where = number, {}
        for axis in reversed(range(len(shape))):
            where[f"i{axis}"] = left % shape[axis]
            left //= shape[axis]
        assert eval(position, {}, where) == number


def test_dimensions_of_one_element_come_and_go_without_arithmetic():
    at = [At("i0", 0), ZERO, At("i2", 2)]
    assert reshape((2, 1, 3), (2, 3), at) == [at[0], at[2]]
    assert reshape((2, 1, 3), (1, 2, 3, 1), at) == [ZERO, at[0], at[2], ZERO]


def test_constants_stay_constants():
    assert shift(ZERO, 2, 5) == At("2")
    assert shift(At("i0", 0), 2, 5) == At("(i0 + 2)")
    assert shift(At("i0", 0), 0, 5) == At("i0", 0)
    assert shift(At("i0", 0), 3, 1) == ZERO


def test_what_is_repeated_is_read_at_zero():
    assert aligned((1, 3), [At("i0", 0), At("i1", 1), At("i2", 2)]) == [ZERO, At("i2", 2)]
