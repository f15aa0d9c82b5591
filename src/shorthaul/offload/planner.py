"""Which storages of a step to keep, to offload and to recompute, under a budget of bytes.

The choice is a search, and `simulate_step` is its only judge: a plan that is returned as fitting has
been played through and never held more than the budget. The search starts from a few sensible
plans (keep everything; offload what frees most byte-seconds per second of disk time, just enough of
it; the same with more and more regions recomputed; offload everything) and then changes one or two
decisions at a time while that helps.

>>> units = [
...     Unit(f"layer {i}", 100, 100, i, first_use_at_seconds=20 - 2 * i, last_use_at_seconds=22 - 2 * i)
...     for i in range(6)
... ]
>>> plan = plan_step(
...     units, budget_bytes=400, disk=Disk(100.0, 100.0), in_flight_bytes=200, prefetch_bytes=100
... )
>>> plan.fits, [decision.value for decision in plan.decisions]
(True, ['offload', 'offload', 'keep', 'keep', 'keep', 'keep'])
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

from shorthaul.errors import PlanError
from shorthaul.offload.simulation import Decision, Disk, Simulation, Unit, simulate_step
from shorthaul.units import format_bytes, format_seconds

# One simulation of n units takes 10 to 20 n microseconds; a climb stops after so many units have been
# simulated, or so many plans, which keeps planning for hundreds of units at a second or two.
_CLIMB_LIMIT_UNITS = 25_000
_CLIMB_LIMIT_PLANS = 2_000

Decisions = tuple[Decision, ...]


@dataclass(frozen=True)
class Plan:
    """One decision per unit, what it was decided for, and how the step goes with it.

    When nothing fits, `decisions` is the plan that holds least, and `smallest_budget_bytes` is the
    budget that it needs.
    """

    units: tuple[Unit, ...]
    decisions: Decisions
    simulation: Simulation
    disk: Disk
    budget_bytes: int
    in_flight_bytes: int
    prefetch_bytes: int
    endurance_bytes_per_step: int | None
    kept_peak_bytes: int  # the peak of keeping everything
    fits: bool
    smallest_budget_bytes: int | None  # None when the plan fits

    def by_name(self) -> dict[str, Decision]:
        """The decision for each unit's name."""
        return {
            unit.name: decision for unit, decision in zip(self.units, self.decisions, strict=True)
        }

    @property
    def planned_write_bytes(self) -> int:
        """What the plan writes per step when no store is cancelled."""
        return _stored_bytes(self.units, self.decisions)

    @property
    def compute_seconds(self) -> float:
        """The step's own time, without waiting and recomputing."""
        return max((unit.last_use_at_seconds for unit in self.units), default=0.0)

    def explain(self) -> str:
        """The plan in words and in a table of runs of equal decisions."""
        simulation = self.simulation
        lines = [self._verdict()]
        if self.endurance_bytes_per_step is not None:
            lines.append(
                f"writes are limited to {format_bytes(self.endurance_bytes_per_step)} per step by "
                f"the drive's endurance; the plan writes {format_bytes(self.planned_write_bytes)}"
            )
        lines += [
            f"peak {format_bytes(simulation.peak_live_bytes)} of a budget of "
            f"{format_bytes(self.budget_bytes)}; keeping everything takes "
            f"{format_bytes(self.kept_peak_bytes)}",
            f"step {format_seconds(simulation.step_seconds)}: "
            f"{format_seconds(self.compute_seconds)} of its own, "
            f"{format_seconds(simulation.stall_seconds)} waiting, "
            f"{format_seconds(simulation.recompute_seconds)} recomputing",
            f"disk: {format_bytes(simulation.written_bytes)} written, "
            f"{format_bytes(simulation.read_bytes)} read, "
            f"{len(simulation.forwarded)} forwarded from memory",
            "",
            f"{'decision':<10}{'storages':>9}{'bytes':>12}  which",
        ]
        lines.extend(self._runs())
        return "\n".join(lines)

    def _verdict(self) -> str:
        if self.fits:
            return "the plan fits"
        needed_bytes = self.smallest_budget_bytes or 0
        return (
            f"no plan was found for a budget of {format_bytes(self.budget_bytes)} "
            f"({self.budget_bytes:,} bytes): the smallest budget that works is "
            f"{format_bytes(needed_bytes)} ({needed_bytes:,} bytes).\n"
            "  Raise `budget` to that, or lower the batch size.\n"
            "  What follows is the plan for that budget."
        )

    def _runs(self) -> Iterator[str]:
        in_order = sorted(
            zip(self.units, self.decisions, strict=True),
            key=lambda pair: pair[0].produced_at_seconds,
        )
        for decision, pairs in groupby(in_order, key=lambda pair: pair[1]):
            run = [unit for unit, _ in pairs]
            which = run[0].name if len(run) == 1 else f"{run[0].name} .. {run[-1].name}"
            size = format_bytes(sum(unit.size_bytes for unit in run))
            yield f"{decision.value:<10}{len(run):>9}{size:>12}  {which}"


def plan_step(
    units: Sequence[Unit],
    *,
    budget_bytes: int,
    disk: Disk,
    in_flight_bytes: int,
    prefetch_bytes: int,
    endurance_bytes_per_step: int | None = None,
) -> Plan:
    """The plan with the least waiting and recomputing that was found to fit `budget_bytes`.

    Of equally fast plans, the one that writes least. `endurance_bytes_per_step` bounds what may be
    written. Never slower than keeping everything or offloading everything, where those are allowed
    and fit.
    """
    if budget_bytes < 0 or (endurance_bytes_per_step or 0) < 0:
        raise PlanError(
            f"expected limits of at least 0 bytes, got a budget of {budget_bytes} and "
            f"{endurance_bytes_per_step} bytes of writes per step."
        )

    def simulate(decisions: Decisions, within_bytes: int | None) -> Simulation:
        return simulate_step(
            units,
            decisions,
            disk,
            in_flight_bytes=in_flight_bytes,
            prefetch_bytes=prefetch_bytes,
            budget_bytes=within_bytes,
        )

    search = _Search(units, disk, simulate, budget_bytes, endurance_bytes_per_step)
    decisions = search.find()
    simulation = simulate(decisions, budget_bytes)
    fits = simulation.peak_live_bytes <= budget_bytes
    if not fits:
        simulation = _settle(lambda within_bytes: simulate(decisions, within_bytes), budget_bytes)
    return Plan(
        units=tuple(units),
        decisions=decisions,
        simulation=simulation,
        disk=disk,
        budget_bytes=budget_bytes,
        in_flight_bytes=in_flight_bytes,
        prefetch_bytes=prefetch_bytes,
        endurance_bytes_per_step=endurance_bytes_per_step,
        kept_peak_bytes=simulate(search.keep_all, None).peak_live_bytes,
        fits=fits,
        smallest_budget_bytes=None if fits else simulation.peak_live_bytes,
    )


def _settle(simulate: Callable[[int | None], Simulation], refused_bytes: int) -> Simulation:
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
class Measured:
    """What steps show while they run; `smoothed` makes one value of many."""

    write_bytes_per_second: float
    read_bytes_per_second: float
    compute_seconds: float  # of a step, without what it waited for
    saved_bytes: int  # sizes of all unique storages of a step

    def smoothed(self, latest: Measured, *, weight: float = 0.2) -> Measured:
        """The exponentially weighted mean after `latest`; sizes are taken as they come.

        Bandwidth and time are noisy, so one bad step moves them by a fifth. Sizes are exact: a batch
        of another shape is another step.
        """

        def mix(before: float, now: float) -> float:
            return (1 - weight) * before + weight * now

        return Measured(
            mix(self.write_bytes_per_second, latest.write_bytes_per_second),
            mix(self.read_bytes_per_second, latest.read_bytes_per_second),
            mix(self.compute_seconds, latest.compute_seconds),
            latest.saved_bytes,
        )


def needs_new_plan(
    plan: Plan, measured: Measured, *, tolerance: float = 0.3, size_tolerance: float = 0.02
) -> bool:
    """Whether what is measured has drifted too far from what `plan` was made for."""
    return bool(explain_drift(plan, measured, tolerance=tolerance, size_tolerance=size_tolerance))


def explain_drift(
    plan: Plan, measured: Measured, *, tolerance: float = 0.3, size_tolerance: float = 0.02
) -> tuple[str, ...]:
    """One sentence for each measure that has left its band; empty while the plan still holds.

    The band lies around what the plan was made for, and a new plan is made for what is measured
    then. So a value that wavers at the edge of the band causes one new plan, not one per step.
    """
    drifts = []
    for what, planned, now, band in (
        (
            "write bandwidth (bytes/s)",
            plan.disk.write_bytes_per_second,
            measured.write_bytes_per_second,
            tolerance,
        ),
        (
            "read bandwidth (bytes/s)",
            plan.disk.read_bytes_per_second,
            measured.read_bytes_per_second,
            tolerance,
        ),
        ("time of a step (s)", plan.compute_seconds, measured.compute_seconds, tolerance),
        (
            "saved bytes",
            float(sum(unit.size_bytes for unit in plan.units)),
            float(measured.saved_bytes),
            size_tolerance,
        ),
    ):
        if not planned / (1 + band) <= now <= planned * (1 + band):
            drifts.append(f"{what}: planned for {planned:,.4g}, now {now:,.4g}")
    return tuple(drifts)


def _stored_bytes(units: Sequence[Unit], decisions: Decisions) -> int:
    return sum(
        unit.stored_bytes
        for unit, decision in zip(units, decisions, strict=True)
        if decision is Decision.OFFLOAD
    )


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


class _Search:
    """One search over decisions; every candidate is simulated once and remembered."""

    def __init__(
        self,
        units: Sequence[Unit],
        disk: Disk,
        simulate: Callable[[Decisions, int | None], Simulation],
        budget_bytes: int,
        endurance_bytes: int | None,
    ) -> None:
        self.units, self.simulate = units, simulate
        self.budget_bytes, self.endurance_bytes = budget_bytes, endurance_bytes
        self.scores: dict[tuple[Decisions, int], _Score] = {}
        self.keep_all: Decisions = (Decision.KEEP,) * len(units)
        # The best start alone often leads to a local optimum; more of them where they are cheap.
        self._climbs = 4 if len(units) <= 64 else 2
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
        parts = 8 if len(self.units) <= 64 else 4
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
        return _settle(lambda within: self.simulate(decisions, within), -1).peak_live_bytes

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
        limit = min(_CLIMB_LIMIT_PLANS, _CLIMB_LIMIT_UNITS // max(1, len(self.units)))
        tried: set[Decisions] = {decisions}
        best = key(decisions)
        is_improving = True
        while is_improving:
            is_improving = False
            for candidate in self._neighbours(decisions):
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

    def _neighbours(self, decisions: Decisions) -> Iterator[Decisions]:
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
                _stored_bytes(self.units, decisions),
            )
        return score

    def _by_time(self, decisions: Decisions) -> tuple[float, ...]:
        return self._score(decisions).by_time()

    def _fits(self, decisions: Decisions) -> bool:
        return self._score(decisions).peak_bytes <= self.budget_bytes

    def _is_within_endurance(self, decisions: Decisions) -> bool:
        return (
            self.endurance_bytes is None
            or _stored_bytes(self.units, decisions) <= self.endurance_bytes
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
