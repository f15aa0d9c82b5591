"""The search for a step's decisions; `planner` says what for.

Candidates are judged by simulation alone. The search starts from greedy plans and changes one or two
decisions at a time; it proves nothing, so its tests compare it with trying every plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from shorthaul.offload.policy.simulation import Decision, Disk, Simulation, Unit

# One simulation of n units takes about 10 n microseconds. A climb stops after this many units have been
# simulated, or this many plans, which keeps planning for hundreds of units at about a third of a second:
# four times as many found nothing better there. Steps of few units have odd shapes, and get more.
_FEW_UNITS = 64
_CLIMB_LIMIT_UNITS, _CLIMB_LIMIT_UNITS_OF_FEW = 6_000, 15_000
_CLIMB_LIMIT_PLANS = 2_000

Decisions = tuple[Decision, ...]
# Simulates decisions within a number of bytes; None: without a budget.
Simulate = Callable[[Decisions, int | None], Simulation]


def stored_bytes_of(units: Sequence[Unit], decisions: Decisions) -> int:
    """What these decisions write when no store is cancelled."""
    return sum(
        unit.stored_bytes
        for unit, decision in zip(units, decisions, strict=True)
        if decision is Decision.OFFLOAD
    )


def settle(simulate: Callable[[int | None], Simulation], refused_bytes: int) -> Simulation:
    """The step within the smallest budget above `refused_bytes` that was found to hold.

    Under a budget of nothing the step is as frugal as it can be, and its peak is the first guess.
    With that much allowed it may be less frugal and need a little more, and so on.
    """
    guess_bytes = simulate(0).peak_live_bytes
    if guess_bytes <= refused_bytes:
        guess_bytes = simulate(refused_bytes).peak_live_bytes
    for _ in range(8):
        run = simulate(guess_bytes)
        if run.peak_live_bytes <= guess_bytes:
            return run if run.peak_live_bytes > refused_bytes else simulate(None)
        guess_bytes = run.peak_live_bytes
    return simulate(None)  # what was never held back needs no holding back


@dataclass(frozen=True)
class _Score:
    peak_bytes: int
    extra_seconds: float
    planned_write_bytes: int

    def by_time(self) -> tuple[float, int]:
        # To the nanosecond: sums of floats in another order are no improvement.
        return round(self.extra_seconds, 9), self.planned_write_bytes

    def by_peak(self) -> tuple[int, float, int]:
        return self.peak_bytes, *self.by_time()


class Search:
    """One search over decisions; every candidate is simulated once and remembered."""

    def __init__(
        self,
        units: Sequence[Unit],
        disk: Disk,
        simulate: Simulate,
        budget_bytes: int,
        endurance_bytes: int | None,
    ) -> None:
        self.units, self.simulate = units, simulate
        self.budget_bytes, self.endurance_bytes = budget_bytes, endurance_bytes
        self.scores: dict[tuple[Decisions, int], _Score] = {}
        self.keep_all: Decisions = (Decision.KEEP,) * len(units)
        # The best start alone often leads to a local optimum; more of them where they are cheap.
        self._climbs = 4 if len(units) <= _FEW_UNITS else 2
        self.regions = _rank_regions(units)
        self.offload_order = sorted(
            range(len(units)),
            key=lambda i: (-_worth_of_offload(units[i], disk), units[i].produced_at_seconds, i),
        )

    def find(self) -> Decisions:
        """The best decisions found; they may not fit, and are then the ones that hold least."""
        if self._fits(self.keep_all):
            return self.keep_all
        offloading = self._offload_just_enough(())
        if self._fits(offloading) and self._score(offloading).extra_seconds == 0:
            return self._improve(offloading, self._by_time, self._fits)
        starts = [offloading, *self._recomputing_starts(), *self._extreme_starts()]
        fitting = [each for each in dict.fromkeys(starts) if self._fits(each)]
        if not fitting:
            least = self._lowest_peak()
            if not self._fits(least):
                return least
            fitting = [least]
        fitting.sort(key=self._by_time)
        improved = [
            self._improve(each, self._by_time, self._fits) for each in fitting[: self._climbs]
        ]
        return min(improved, key=self._by_time)

    # -- where to start -----------------------------------------------------------------------

    def _extreme_starts(self) -> list[Decisions]:
        """Offload everything, and everything that is left when every region is recomputed."""
        everything = len(self.units)
        candidates = [
            self._decide(everything, ()),
            self._decide(everything, self.regions),
            self._decide(0, self.regions),
        ]
        return list(dict.fromkeys(candidates))

    def _recomputing_starts(self) -> Iterator[Decisions]:
        """For ever more recomputed regions, from either end of the rank, offload just enough."""
        count = len(self.regions)
        parts = 8 if len(self.units) <= _FEW_UNITS else 4
        for order in (self.regions, self.regions[::-1]):
            for recomputed in sorted({count * part // parts for part in range(1, parts + 1)}):
                yield self._offload_just_enough(order[:recomputed])

    def _offload_just_enough(self, recomputed: Sequence[tuple[int, ...]]) -> Decisions:
        """The fewest of the ranked units that make it fit; all of them when none do."""
        low, high = 0, len(self.units)
        while low < high:  # the peak falls with every unit, nearly: the judge has the last word
            middle = (low + high) // 2
            if self._fits(self._decide(middle, recomputed)):
                high = middle
            else:
                low = middle + 1
        return self._decide(low, recomputed)

    def _lowest_peak(self) -> Decisions:
        """The decisions found to hold least. Looks at no budget: what it finds can be promised."""

        def by_peak(decisions: Decisions) -> tuple[float, ...]:
            return self._score(decisions, within_bytes=0).by_peak()

        starts = sorted({self.keep_all, *self._extreme_starts()}, key=by_peak)
        improved = [self._improve(each, by_peak, lambda _: True) for each in starts[: self._climbs]]
        return min(
            [*improved, *starts], key=lambda each: (self._settled_bytes(each), by_peak(each))
        )

    def _settled_bytes(self, decisions: Decisions) -> int:
        return settle(lambda within: self.simulate(decisions, within), -1).peak_live_bytes

    def _decide(self, offloaded: int, recomputed: Iterable[tuple[int, ...]]) -> Decisions:
        """Recompute these regions, and offload the first of the ranked units within endurance."""
        decisions = list(self.keep_all)
        for members in recomputed:
            for index in members:
                decisions[index] = Decision.RECOMPUTE
        left_bytes = self.endurance_bytes
        for index in self.offload_order[:offloaded]:
            stored_bytes = self.units[index].stored_bytes
            is_allowed = left_bytes is None or stored_bytes <= left_bytes
            if decisions[index] is Decision.KEEP and is_allowed:
                decisions[index] = Decision.OFFLOAD
                left_bytes = None if left_bytes is None else left_bytes - stored_bytes
        return tuple(decisions)

    # -- making it better ---------------------------------------------------------------------

    def _improve(
        self,
        decisions: Decisions,
        key: Callable[[Decisions], tuple[float, ...]],
        is_allowed: Callable[[Decisions], bool],
    ) -> Decisions:
        """Take the first change that helps, again and again, until none does or time is up."""
        count = len(self.units)
        limit_units = _CLIMB_LIMIT_UNITS_OF_FEW if count <= _FEW_UNITS else _CLIMB_LIMIT_UNITS
        limit = min(_CLIMB_LIMIT_PLANS, limit_units // max(1, count))
        tried: set[Decisions] = {decisions}
        best = key(decisions)
        is_improving = True
        while is_improving:
            is_improving = False
            for candidate in self._neighbors(decisions):
                if candidate in tried or not self._is_within_endurance(candidate):
                    continue
                if len(tried) > limit:
                    return decisions
                tried.add(candidate)
                if is_allowed(candidate) and key(candidate) < best:
                    decisions, best = candidate, key(candidate)
                    is_improving = True
                    break
        return decisions

    def _neighbors(self, decisions: Decisions) -> Iterator[Decisions]:
        """Every plan that differs in one choice, then every one that differs in two."""
        moves = list(self._moves(decisions))
        for move in moves:
            yield _changed(decisions, move)
        for first, second in combinations(moves, 2):
            if not first.keys() & second.keys():
                yield _changed(decisions, first | second)

    def _moves(self, decisions: Decisions) -> Iterator[dict[int, Decision]]:
        for index in reversed(self.offload_order):
            if decisions[index] is Decision.OFFLOAD:
                yield {index: Decision.KEEP}
        for members in self.regions:
            if decisions[members[0]] is Decision.RECOMPUTE:
                yield dict.fromkeys(members, Decision.KEEP)
                yield dict.fromkeys(members, Decision.OFFLOAD)
            else:
                yield dict.fromkeys(members, Decision.RECOMPUTE)
        for index in self.offload_order:
            if decisions[index] is Decision.KEEP:
                yield {index: Decision.OFFLOAD}

    # -- judging ------------------------------------------------------------------------------

    def _score(self, decisions: Decisions, within_bytes: int | None = None) -> _Score:
        within_bytes = self.budget_bytes if within_bytes is None else within_bytes
        score = self.scores.get((decisions, within_bytes))
        if score is None:
            simulation = self.simulate(decisions, within_bytes)
            score = self.scores[decisions, within_bytes] = _Score(
                simulation.peak_live_bytes,
                simulation.extra_seconds,
                stored_bytes_of(self.units, decisions),
            )
        return score

    def _by_time(self, decisions: Decisions) -> tuple[float, ...]:
        return self._score(decisions).by_time()

    def _fits(self, decisions: Decisions) -> bool:
        return self._score(decisions).peak_bytes <= self.budget_bytes

    def _is_within_endurance(self, decisions: Decisions) -> bool:
        return (
            self.endurance_bytes is None
            or stored_bytes_of(self.units, decisions) <= self.endurance_bytes
        )


def _changed(decisions: Decisions, changes: dict[int, Decision]) -> Decisions:
    return tuple(changes.get(index, decision) for index, decision in enumerate(decisions))


def _worth_of_offload(unit: Unit, disk: Disk) -> float:
    """Byte-seconds of memory that offloading frees, per second that it keeps the disk busy."""
    busy_seconds = disk.write_seconds(unit) + disk.read_seconds(unit)
    away_seconds = unit.first_use_at_seconds - unit.produced_at_seconds - busy_seconds
    return unit.size_bytes * away_seconds / max(busy_seconds, 1e-12)


def _rank_regions(units: Sequence[Unit]) -> list[tuple[int, ...]]:
    """The regions that can be recomputed, the most byte-seconds freed per second of work first."""
    members: dict[str | None, list[int]] = defaultdict(list)
    for index, unit in enumerate(units):
        if unit.can_recompute:
            members[unit.region].append(index)

    def worth(indices: tuple[int, ...]) -> float:
        freed = sum(
            units[i].size_bytes * (units[i].first_use_at_seconds - units[i].produced_at_seconds)
            for i in indices
        )
        return freed / max(sum(units[i].recompute_seconds or 0.0 for i in indices), 1e-12)

    return sorted(map(tuple, members.values()), key=lambda indices: (-worth(indices), indices))
