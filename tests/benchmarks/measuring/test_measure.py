"""The comparison: it refuses unequal arms, interleaves them, and its numbers are right."""

import dataclasses
import doctest
from collections.abc import Callable

import numpy as np
import pytest
import torch

from benchmarks.measuring import measure
from benchmarks.measuring.measure import (
    Arm,
    Measurable,
    Sample,
    Spread,
    UnequalError,
    compare,
    not_compared,
    plan_order,
    same_bits,
    same_within,
    time_calls,
)


@dataclasses.dataclass
class FakeArm:
    """An arm whose clock is a list: each sample takes the next of `seconds`."""

    name: str
    seconds: list[float]
    log: list[str]
    made: object = None
    can_repeat: bool = False

    def sample(self, calls: int) -> Sample:
        self.log.append(self.name)
        wall_seconds = self.seconds.pop(0)
        return Sample(wall_seconds, wall_seconds / 2)

    def result(self) -> object:
        self.log.append(f"result of {self.name}")
        return self.made


def test_arms_that_make_different_things_are_not_compared() -> None:
    log: list[str] = []
    plain = FakeArm("plain", [1.0] * 9, log, made=torch.tensor([1.0, 2.0]))
    wrong = FakeArm("wrong", [1.0] * 9, log, made=torch.tensor([1.0, 2.5]))
    with pytest.raises(UnequalError) as caught:
        compare([plain, wrong], baseline="plain", same=same_bits, rounds=1)
    assert str(caught.value) == (
        "`wrong` and `plain` made different things, so they are not compared: "
        "1 of 2 elements differ, first at 1: expected 2.0, got 2.5"
    )
    assert log == ["result of plain", "result of wrong"], "nothing was timed"


def test_every_arm_runs_in_every_round_and_the_order_changes() -> None:
    log: list[str] = []
    arms = [FakeArm(name, [1.0] * 9, log) for name in "abc"]
    compare(arms, baseline="a", same=not_compared, rounds=6, warm_ups=2)
    timed = log[3 + 2 * 3 :]
    assert [timed[at : at + 3] for at in range(0, 18, 3)] == [
        ["a", "b", "c"],
        ["c", "b", "a"],
        ["b", "c", "a"],
        ["a", "c", "b"],
        ["c", "a", "b"],
        ["b", "a", "c"],
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_over_the_rounds_every_arm_has_every_place_equally_often(count: int) -> None:
    arms: list[Measurable] = [FakeArm(str(number), [], []) for number in range(count)]
    places = np.zeros((count, count), dtype=int)
    for number in range(2 * count):
        for place, arm in enumerate(plan_order(arms, number)):
            places[int(arm.name), place] += 1
    assert (places == 2).all()


def test_ratios_are_taken_within_each_round() -> None:
    # The machine is twice as slow in the second round and four times in the third; the second arm
    # always takes half the time. The first sample of each is the warm-up.
    log: list[str] = []
    plain = FakeArm("plain", [9.0, 1.0, 2.0, 4.0], log)
    half = FakeArm("half", [9.0, 0.5, 1.0, 2.0], log)
    first, second = compare([plain, half], baseline="plain", same=not_compared, rounds=3)
    assert first.speedup == Spread(1.0, 1.0, 1.0)
    assert second.speedup == Spread(2.0, 2.0, 2.0)
    assert second.wall_seconds.median == 1.0
    assert second.cpu_seconds.median == 0.5
    assert (second.rounds, second.arm, second.baseline) == (3, "half", "plain")


def test_a_spread_holds_four_of_five_rounds() -> None:
    spread = Spread.of([float(number) for number in range(11)])
    assert spread == Spread(median=5.0, low=1.0, high=9.0)
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0)


def test_short_calls_are_repeated_to_fill_a_sample() -> None:
    calls: list[int] = []
    arm = Arm("short", lambda: calls.append(1))
    [measured] = compare([arm], baseline="short", same=not_compared, rounds=1, sample_seconds=0.002)
    assert measured.calls > 100
    assert len(calls) > measured.calls
    assert 0 < measured.wall_seconds.median < 0.002


def test_an_arm_with_a_preparation_is_prepared_before_every_call() -> None:
    log: list[str] = []
    arm = Arm("cold", lambda: log.append("run"), prepare=lambda: log.append("prepare"))
    [measured] = compare([arm], baseline="cold", same=not_compared, rounds=3)
    assert measured.calls == 1
    assert log == ["prepare", "run"] * 5  # one result, one warm-up, three rounds


def test_the_time_of_one_event_is_a_share_of_the_call() -> None:
    many, one = (
        compare(
            [Arm("loop", lambda: sum(range(100_000)), events=events)],
            baseline="loop",
            same=not_compared,
            rounds=1,
            sample_seconds=0.001,
        )[0].wall_seconds.median
        for events in (1_000_000, 1)
    )
    assert many * 1000 < one


def test_cpu_seconds_do_not_count_waiting() -> None:
    import time

    sample = time_calls(lambda: time.sleep(0.02), calls=2)
    assert sample.wall_seconds >= 0.02
    assert sample.cpu_seconds < sample.wall_seconds / 2


@pytest.mark.parametrize(
    ("arms", "baseline", "rounds", "message"),
    [
        (["a"], "b", 1, "expected distinct arms, `b` among them, got ['a']"),
        (["a", "a"], "a", 1, "expected distinct arms, `a` among them, got ['a', 'a']"),
        (["a"], "a", 0, "expected at least one round and one warm-up, got 0, 1"),
    ],
)
def test_comparisons_that_make_no_sense_are_refused(
    arms: list[str], baseline: str, rounds: int, message: str
) -> None:
    fakes = [FakeArm(name, [1.0] * 9, []) for name in arms]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared below
        compare(fakes, baseline=baseline, same=not_compared, rounds=rounds)
    assert str(caught.value) == message


NAN = float("nan")
EQUAL = [
    (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN])),
    (torch.arange(6).view(2, 3).t(), torch.tensor([[0, 3], [1, 4], [2, 5]])),
    (torch.tensor(True), torch.tensor(True)),
    (torch.empty(0, 3), torch.empty(0, 3)),
    (torch.ones(2, requires_grad=True), torch.ones(2)),
    (np.arange(3), np.arange(3)),
    ({"a": [torch.ones(2), 3]}, {"a": (torch.ones(2), 3)}),
    (b"bytes", b"bytes"),
    (None, None),
]
UNEQUAL = [
    (torch.tensor([0.0]), torch.tensor([-0.0]), "1 of 1 elements differ, first at 0"),
    (torch.ones(2), torch.ones(3), "expected (2,) of torch.float32, got (3,) of torch.float32"),
    (torch.ones(2), torch.ones(2).double(), "got (2,) of torch.float64"),
    (np.arange(3), np.arange(1, 4), "3 of 3 elements differ"),
    ([1, 2], [1], "expected 2 items, got 1"),
    ({"a": 1}, {"b": 1}, "expected the keys ['a'], got ['b']"),
    ({"a": [1, 2]}, {"a": [1, 3]}, "['a'] [1] expected 2, got 3"),
    (1, 1.0, "expected 1, got 1.0"),
    (torch.ones(1), [1.0], "expected tensor([1.]), got [1.0]"),
    (None, 0, "expected None, got 0"),
]


@pytest.mark.parametrize("same", [same_bits, same_within(0.0, 0.0)], ids=["bits", "within"])
@pytest.mark.parametrize(("expected", "got"), EQUAL[1:])
def test_equal_things_are_the_same(
    same: Callable[[object, object], str], expected: object, got: object
) -> None:
    assert same(expected, got) == ""


def test_a_nan_has_the_same_bits_as_itself() -> None:
    assert same_bits(*EQUAL[0]) == ""


@pytest.mark.parametrize(("expected", "got", "message"), UNEQUAL)
def test_unequal_things_are_not_the_same(expected: object, got: object, message: str) -> None:
    assert message in same_bits(expected, got)


@pytest.mark.parametrize(("expected", "got", "message"), UNEQUAL[1:])
def test_no_tolerance_makes_up_for_shape_type_or_structure(
    expected: object, got: object, message: str
) -> None:
    assert same_within(1e-3, 1e-3)(expected, got)


def test_a_tolerance_is_a_bound() -> None:
    same = same_within(relative=0.0, absolute=0.1)
    assert same(torch.tensor([1.0]), torch.tensor([1.09])) == ""
    assert "Mismatched elements: 1 / 1" in same(torch.tensor([1.0]), torch.tensor([1.11]))
    assert same(torch.tensor([NAN]), torch.tensor([1.0]))


def test_the_examples_of_the_module_hold() -> None:
    assert doctest.testmod(measure).failed == 0
