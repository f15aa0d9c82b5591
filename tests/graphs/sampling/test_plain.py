import itertools
from collections import Counter

import pytest

from shorthaul.graphs.sampling.plain import RandomStream, draw, mix


class Scripted:
    """A stream whose numbers are given, to try every sequence that a real one could produce."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self.numbers = list(numbers)

    def below(self, bound: int) -> int:
        number = self.numbers.pop(0)
        assert number < bound
        return number


@pytest.mark.parametrize(("degree", "fan_out"), [(2, 1), (4, 2), (5, 3), (6, 5)])
def test_equally_likely_numbers_make_equally_likely_subsets(degree: int, fan_out: int) -> None:
    ranges = (range(last + 1) for last in range(degree - fan_out, degree))
    counts = Counter(
        tuple(draw(Scripted(numbers), degree, fan_out, replace=False))
        for numbers in itertools.product(*ranges)
    )
    assert set(counts) == set(itertools.combinations(range(degree), fan_out))
    assert len(set(counts.values())) == 1


def test_few_neighbors_are_all_taken_and_minus_one_takes_all() -> None:
    stream = RandomStream(0, 0)
    assert draw(stream, 3, 5, replace=False) == [0, 1, 2]
    assert draw(stream, 4, -1, replace=True) == [0, 1, 2, 3]
    assert draw(stream, 0, 5, replace=True) == []
    assert draw(stream, 9, 0, replace=False) == []


def test_mixing_is_as_published() -> None:
    # SplitMix64 from state 0: its first two numbers.
    golden = 0x9E3779B97F4A7C15
    assert mix(golden) == 0xE220A8397B1DCDAF
    assert mix(2 * golden % 2**64) == 0x6E789E6AA1B965F4


def test_numbers_that_would_be_too_likely_are_drawn_anew() -> None:
    # With a bound of three quarters of 2**64 a quarter of the draws must be refused.
    bound = 3 * 2**62
    halves = Counter(RandomStream(1, owner).below(bound) * 3 // bound for owner in range(3000))
    assert all(900 < halves[third] < 1100 for third in range(3))
