"""Arms measured side by side: checked equal, warmed up, interleaved, medians with their spread.

>>> plain = Arm("plain", lambda: sum([number for number in range(1000)]))
>>> lazy = Arm("generator", lambda: sum(number for number in range(1000)))
>>> compared = compare([plain, lazy], baseline="plain", same=same_bits, rounds=3)
>>> [each.arm for each in compared], compared[0].speedup.median
(['plain', 'generator'], 1.0)

A round runs every arm once, in an order that changes from round to round, so that whatever slows
the machine down for a while meets all arms alike. Ratios are taken within a round, before any
median, for the same reason.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

Same = Callable[[object, object], str]


@dataclass(frozen=True)
class Sample:
    """What one event took: seconds on the clock, and seconds of all cores together."""

    wall_seconds: float
    cpu_seconds: float


class Measurable(Protocol):
    """What `compare` needs of an arm, whether it runs here or in another environment."""

    @property
    def name(self) -> str:
        """What the arm is called in tables."""

    @property
    def can_repeat(self) -> bool:
        """Whether several calls may be timed as one sample."""

    def sample(self, calls: int) -> Sample:
        """Run `calls` times; the time of one event."""

    def result(self) -> object:
        """Run once; what came out."""


@dataclass(frozen=True)
class Arm:
    """One way of doing the thing that is measured.

    `run` does it `events` times and returns what it made, which is compared with the baseline's.
    `prepare` runs before each sample, outside the time: to empty a cache, for instance. An arm with
    a preparation is called once per sample, because a second call would find things prepared
    otherwise.
    """

    name: str
    run: Callable[[], object]
    prepare: Callable[[], object] | None = None
    events: int = 1

    @property
    def can_repeat(self) -> bool:
        """False when each call must be prepared."""
        return self.prepare is None

    def sample(self, calls: int) -> Sample:
        """Run `calls` times; the time of one event."""
        if self.prepare is not None:
            self.prepare()
        return time_calls(self.run, calls, self.events)

    def result(self) -> object:
        """Run once; what came out."""
        if self.prepare is not None:
            self.prepare()
        return self.run()


def time_calls(run: Callable[[], object], calls: int, events: int = 1) -> Sample:
    """The time of one event when `run`, which has `events` of them, is called `calls` times."""
    cpu_started = time.process_time()
    started = time.perf_counter()
    for _ in range(calls):
        run()
    wall_seconds = time.perf_counter() - started
    cpu_seconds = time.process_time() - cpu_started
    return Sample(wall_seconds / (calls * events), cpu_seconds / (calls * events))


@dataclass(frozen=True)
class Spread:
    """The median of several rounds, with the range that holds four of five of them."""

    median: float
    low: float  # a tenth of the rounds lies below
    high: float  # a tenth of the rounds lies above

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of one number per round."""
        low, median, high = np.quantile(values, (0.1, 0.5, 0.9))
        return cls(float(median), float(low), float(high))


@dataclass(frozen=True)
class Measured:
    """One arm's figures; `speedup` is above one where it is faster than the baseline."""

    arm: str
    baseline: str
    rounds: int
    calls: int  # per round, timed as one
    wall_seconds: Spread
    cpu_seconds: Spread
    speedup: Spread


class UnequalError(AssertionError):
    """Two arms do not compute the same, so their times say nothing."""

    def __init__(self, arm: str, baseline: str, difference: str) -> None:
        super().__init__(
            f"`{arm}` and `{baseline}` made different things, so they are not compared: {difference}"
        )


def compare(
    arms: Sequence[Measurable],
    *,
    baseline: str,
    same: Same,
    rounds: int = 9,
    warm_ups: int = 1,
    sample_seconds: float = 0.05,
) -> list[Measured]:
    """Measure every arm against the one named `baseline`.

    `same` says how results must agree: `same_bits`, `same_within(...)`, or `not_compared` where
    there is nothing to compare. Calls shorter than `sample_seconds` are repeated to last as long.
    """
    names = [each.name for each in arms]
    if baseline not in names or len(set(names)) != len(names):
        raise ValueError(f"expected distinct arms, `{baseline}` among them, got {names}")
    if rounds < 1 or warm_ups < 1:
        raise ValueError(f"expected at least one round and one warm-up, got {rounds}, {warm_ups}")
    require_same(arms, baseline, same)
    calls = {each.name: _warm_up(each, warm_ups, sample_seconds) for each in arms}
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for number in range(rounds):
        for each in plan_order(arms, number):
            samples[each.name].append(each.sample(calls[each.name]))
    return [_summarize(name, baseline, calls[name], samples) for name in names]


def require_same(arms: Sequence[Measurable], baseline: str, same: Same) -> None:
    """Raise `UnequalError` unless every arm makes what the baseline makes."""
    expected = next(each for each in arms if each.name == baseline).result()
    for each in arms:
        if each.name != baseline:
            difference = same(expected, each.result())
            if difference:
                raise UnequalError(each.name, baseline, difference)


def plan_order(arms: Sequence[Measurable], number: int) -> list[Measurable]:
    """The arms in the order of round `number`: each starts in turn, every other round backwards."""
    start = (number // 2) % len(arms)
    order = [*arms[start:], *arms[:start]]
    return order[::-1] if number % 2 else order


def _warm_up(arm: Measurable, times: int, sample_seconds: float) -> int:
    """Run the arm so that code and caches are ready; how many calls fill `sample_seconds`."""
    started = time.perf_counter()
    for _ in range(times):
        arm.sample(1)
    if not arm.can_repeat:
        return 1
    calls, call_seconds = times, (time.perf_counter() - started) / times
    while call_seconds * calls < sample_seconds / 4:  # too short to tell: look longer
        calls *= 4
        started = time.perf_counter()
        arm.sample(calls)
        call_seconds = (time.perf_counter() - started) / calls
    return max(1, math.ceil(sample_seconds / call_seconds))


def _summarize(
    name: str, baseline: str, calls: int, samples: Mapping[str, Sequence[Sample]]
) -> Measured:
    walls = [each.wall_seconds for each in samples[name]]
    baselines = [each.wall_seconds for each in samples[baseline]]
    return Measured(
        arm=name,
        baseline=baseline,
        rounds=len(walls),
        calls=calls,
        wall_seconds=Spread.of(walls),
        cpu_seconds=Spread.of([each.cpu_seconds for each in samples[name]]),
        speedup=Spread.of([other / own for other, own in zip(baselines, walls, strict=True)]),
    )


def same_bits(expected: object, got: object) -> str:
    """What differs in any bit, in words; empty when nothing does. For what was only moved."""
    return _difference(expected, got, _different_bits)


def same_within(relative: float, absolute: float) -> Same:
    """Like `same_bits`, but tensors may differ as reordered arithmetic does. State the reason."""

    def different(expected: torch.Tensor, got: torch.Tensor) -> str:
        try:
            torch.testing.assert_close(got, expected, rtol=relative, atol=absolute)
        except AssertionError as error:
            return " ".join(str(error).split())
        return ""

    return lambda expected, got: _difference(expected, got, different)


def not_compared(expected: object, got: object) -> str:
    """For arms whose only product is their effect; anything is the same as anything."""
    del expected, got
    return ""


def _difference(
    expected: object, got: object, different: Callable[[torch.Tensor, torch.Tensor], str]
) -> str:
    if isinstance(expected, np.ndarray) and isinstance(got, np.ndarray):
        expected, got = torch.from_numpy(expected), torch.from_numpy(got)
    if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        return different(expected.detach().cpu(), got.detach().cpu())
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        if expected.keys() != got.keys():
            return f"expected the keys {list(expected)}, got {list(got)}"
        pairs = [(key, expected[key], got[key]) for key in expected]
    elif isinstance(expected, list | tuple) and isinstance(got, list | tuple):
        if len(expected) != len(got):
            return f"expected {len(expected)} items, got {len(got)}"
        pairs = list(zip(range(len(expected)), expected, got, strict=True))
    else:
        is_same = type(expected) is type(got) and expected == got
        return "" if is_same else f"expected {expected!r:.80}, got {got!r:.80}"
    for key, one, other in pairs:
        found = _difference(one, other, different)
        if found:
            return f"[{key!r}] {found}"
    return ""


def _different_bits(expected: torch.Tensor, got: torch.Tensor) -> str:
    if (expected.shape, expected.dtype) != (got.shape, got.dtype):
        return (
            f"expected {tuple(expected.shape)} of {expected.dtype}, "
            f"got {tuple(got.shape)} of {got.dtype}"
        )
    # As bytes: a NaN is equal to itself, and a negative zero is not zero.
    one, other = (each.contiguous().flatten().view(torch.uint8) for each in (expected, got))
    if torch.equal(one, other):
        return ""
    bytes_each = expected.element_size()
    unequal = (one != other).view(-1, bytes_each).any(dim=1)
    first = int(unequal.nonzero()[0])
    return (
        f"{int(unequal.sum()):,} of {unequal.numel():,} elements differ, first at {first}: "
        f"expected {expected.flatten()[first].item()}, got {got.flatten()[first].item()}"
    )
