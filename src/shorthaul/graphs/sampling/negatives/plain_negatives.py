"""Negative edges in plain Python, number for number what the generated kernel draws.

From lists and sets: the oracle of its tests, and what runs where there is no compiler.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shorthaul.graphs.sampling.plain import GOLDEN, RandomStream, mix

_MASK = 2**64 - 1
TARGET, SOURCE, EITHER, BOTH = range(4)


@dataclass(frozen=True)
class PlainPool:
    """Entries of a pool as lists."""

    nodes: Sequence[int]
    times: Sequence[int] | None
    weights: Sequence[float] | None
    cumulative: Sequence[float] | None
    ranges: Sequence[tuple[int, int]]  # for each positive

    def members(self, positive: int, moment: int | None, *, includes_equal: bool) -> range:
        """The entries that positive may take."""
        begin, end = self.ranges[positive]
        if self.times is not None and moment is not None:
            find = bisect.bisect_right if includes_equal else bisect.bisect_left
            end = begin + find(self.times[begin:end], moment)
        return range(begin, end)

    def weight(self, at: int) -> float:
        """How likely an entry is."""
        return 1.0 if self.weights is None else self.weights[at]

    def draw(self, stream: RandomStream, members: range) -> int | None:
        """An entry; None where there is none to draw."""
        if not members:
            return None
        if self.cumulative is None:
            return members.start + stream.below(len(members))
        sums = self.cumulative[members.start : members.stop]
        if not sums[-1] > 0:
            return None
        at = members.start + bisect.bisect_right(sums, stream.fraction() * sums[-1])
        while at == members.stop or not self.weight(at) > 0:
            at -= 1
        return at


@dataclass(frozen=True)
class PlainRequest:
    """What negatives are asked for."""

    positives: Sequence[tuple[int, int, int]]  # source, target, relation
    moments: Sequence[int] | None
    pools: tuple[PlainPool, PlainPool]  # of sources, of targets
    true_edges: frozenset[tuple[int, int, int]] | None
    replaced: int
    allows_loops: bool
    includes_equal: bool
    count: int
    key: int


def draw_plainly(request: PlainRequest, attempts: int) -> list[tuple[int, int] | None]:
    """A pair for each negative; None where there is none."""
    wanted = range(len(request.positives) * request.count)
    return [_draw(request, n, attempts) for n in wanted]


def _draw(request: PlainRequest, n: int, attempts: int) -> tuple[int, int] | None:
    source, target, relation = request.positives[n // request.count]
    takes_source = request.replaced in (SOURCE, BOTH)
    if request.replaced == EITHER:
        takes_source = RandomStream(mix(request.key), n).below(2) == 1
    takes_target = request.replaced == BOTH or not takes_source
    moment = None if request.moments is None else request.moments[n // request.count]
    members = [
        pool.members(n // request.count, moment, includes_equal=request.includes_equal)
        for pool in request.pools
    ]

    def is_allowed(one: int, other: int) -> bool:
        if one == other and not request.allows_loops:
            return False
        if request.true_edges is None:
            return True
        return (one, other) != (source, target) and (one, other, relation) not in request.true_edges

    for attempt in range(attempts):
        stream = RandomStream(_attempt_key(request.key, attempt), n)
        one, other = source, target
        if takes_source:
            if (at := request.pools[0].draw(stream, members[0])) is None:
                return None
            one = request.pools[0].nodes[at]
        if takes_target:
            if (at := request.pools[1].draw(stream, members[1])) is None:
                return None
            other = request.pools[1].nodes[at]
        if is_allowed(one, other):
            return one, other

    # As the kernel's long double: wide enough for a product of any two weights.
    def list_end(which: int, kept: int, *, is_taken: bool) -> list[tuple[int, np.longdouble]]:
        pool = request.pools[which]
        if not is_taken:
            return [(kept, np.longdouble(1.0))]
        return [(pool.nodes[at], np.longdouble(pool.weight(at))) for at in members[which]]

    sources = list_end(0, source, is_taken=takes_source)

    def list_free(target: int) -> list[tuple[int, np.longdouble]]:
        return [(each, weight) for each, weight in sources if is_allowed(each, target)]

    targets = [
        (other, weight * sum((each for _, each in list_free(other)), np.longdouble(0.0)))
        for other, weight in list_end(1, target, is_taken=takes_target)
    ]
    stream = RandomStream(_attempt_key(request.key, attempts), n)
    if (chosen := _choose(targets, stream)) is None:
        return None
    free = _choose(list_free(chosen), stream)
    return None if free is None else (free, chosen)


def _choose(weighed: Sequence[tuple[int, np.longdouble]], stream: RandomStream) -> int | None:
    """A node as likely as its weight; None where all weigh nothing."""
    heavy = [(node, weight) for node, weight in weighed if weight > 0]
    if not heavy:
        return None
    sums = list(itertools.accumulate(weight for _, weight in heavy))
    part = stream.fraction() * sums[-1]
    return heavy[min(bisect.bisect_right(sums, part), len(sums) - 1)][0]


def _attempt_key(key: int, attempt: int) -> int:
    return mix((key + GOLDEN * (attempt + 1)) & _MASK)
