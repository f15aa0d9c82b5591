"""Which neighbors of one node may be taken, and which are, in plain Python.

Number for number what `candidates.h` does, from lists and dictionaries: the oracle of its tests, and
what runs where there is no compiler.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shorthaul.graphs.sampling.candidates.weights import add_up
from shorthaul.graphs.sampling.plain import RandomStream, count_taken, draw

_MOST_ATTEMPTS = 16


@dataclass(frozen=True)
class Candidate:
    """One edge into a target, as far as a rule looks at it."""

    position: int
    relation: int = 0
    source: int = 0
    time: int = 0
    weight: float = 0.0


@dataclass(frozen=True)
class Choice:
    """What a rule looks at in one sample."""

    strategy: str
    replace: bool
    includes_equal: bool
    has_times: bool
    excluded: frozenset[int]
    shared_number: Callable[[int], int]  # of a source, for the strategy `labor`


def take(
    choice: Choice,
    row: Sequence[Candidate],
    fan: Sequence[int],
    moment: int | None,
    stream: RandomStream,
) -> list[int]:
    """Positions taken of a target's row, run by run where fan-outs are per relation."""
    by_relation = len(fan) > 1
    ordered = list(row)
    if choice.has_times:
        ordered.sort(
            key=lambda each: (each.relation if by_relation else 0, each.time, each.position)
        )
    taken: list[int] = []
    runs = itertools.groupby(
        range(len(ordered)), key=lambda at: ordered[at].relation if by_relation else 0
    )
    for relation, members in runs:
        ranks = list(members)
        fan_out = fan[relation] if by_relation else fan[0]
        sums = add_up([ordered[each].weight for each in ranks])
        if moment is not None:
            times = [ordered[each].time for each in ranks]
            side = bisect.bisect_right if choice.includes_equal else bisect.bisect_left
            ranks = ranks[: side(times, moment)]
        kept = [each for each in ranks if ordered[each].position not in choice.excluded]
        if len(kept) < len(ranks):  # sums of their own
            sums = add_up([ordered[each].weight for each in kept])
        found = [ordered[each] for each in kept]
        chosen = _choose(choice, found, sums[: len(kept)], fan_out, stream)
        positions = [ordered[kept[each]].position for each in chosen]
        is_drawn_again = choice.replace and fan_out >= 0
        taken += positions if is_drawn_again else sorted(positions)
    return taken


def _choose(
    choice: Choice,
    candidates: Sequence[Candidate],
    sums: Sequence[float],
    fan_out: int,
    stream: RandomStream,
) -> list[int]:
    count = len(candidates)
    if choice.strategy == "uniform":
        return draw(stream, count, fan_out, replace=choice.replace)
    if choice.strategy == "last":
        return list(range(count - count_taken(count, fan_out, replace=False), count))
    if choice.strategy == "labor":
        numbers = [(choice.shared_number(each.source), at) for at, each in enumerate(candidates)]
        wanted = count_taken(count, fan_out, replace=False)
        return sorted(at for _, at in sorted(numbers)[:wanted])
    weights = [each.weight for each in candidates]
    return _choose_weighted(weights, sums, fan_out, stream, replace=choice.replace)


def _choose_weighted(
    weights: Sequence[float],
    sums: Sequence[float],
    fan_out: int,
    stream: RandomStream,
    *,
    replace: bool,
) -> list[int]:
    """In proportion to the weights, by the inverse of their running sums."""
    heavy = [at for at, weight in enumerate(weights) if weight > 0]
    total = sums[-1] if sums else 0.0

    def find(part: float) -> int:
        at = bisect.bisect_right(sums, part)
        while at == len(sums) or not weights[at] > 0:
            at -= 1
        return at

    if replace and fan_out >= 0:
        return [find(stream.fraction() * total) for _ in range(fan_out if total > 0 else 0)]
    if fan_out < 0 or len(heavy) <= fan_out:
        return heavy
    chosen: list[int] = []
    for _ in range(fan_out):
        for _ in range(_MOST_ATTEMPTS):
            found = find(stream.fraction() * total)
            if found not in chosen:
                chosen.append(found)
                break
        else:
            left = [at for at in heavy if at not in chosen]
            largest = max(weights[at] for at in left)
            running = list(itertools.accumulate(weights[at] / largest for at in left))
            at = bisect.bisect_right(running, stream.fraction() * running[-1])
            chosen.append(left[min(at, len(left) - 1)])
    return chosen
