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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from shorthaul.errors import PlanError
from shorthaul.offload.policy.plan_search import Decisions, Search, settle, stored_bytes_of
from shorthaul.offload.policy.simulation import Decision, Disk, Simulation, Unit, simulate_step
from shorthaul.units import format_bytes, format_seconds


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
        return stored_bytes_of(self.units, self.decisions)

    @property
    def is_free(self) -> bool:
        """Whether it fits, and costs no time at all."""
        return self.fits and self.simulation.extra_seconds == 0

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

    def simulate(
        decisions: Decisions, within_bytes: int | None, *, has_spans: bool = False
    ) -> Simulation:
        return simulate_step(
            units,
            decisions,
            disk,
            in_flight_bytes=in_flight_bytes,
            prefetch_bytes=prefetch_bytes,
            budget_bytes=within_bytes,
            has_spans=has_spans,
        )

    search = Search(units, disk, simulate, budget_bytes, endurance_bytes_per_step)
    decisions = search.find()
    simulation = simulate(decisions, budget_bytes, has_spans=True)
    fits = simulation.peak_live_bytes <= budget_bytes
    if not fits:
        simulation = settle(
            lambda within_bytes: simulate(decisions, within_bytes, has_spans=True), budget_bytes
        )
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


@dataclass(frozen=True)
class BudgetComparison:
    """Plans of one step for several budgets, the largest first; `print` shows what each costs."""

    plans: tuple[Plan, ...]

    def explain(self) -> str:
        """A row for each budget."""
        rows = [f"{'budget':>10}{'step':>11}{'waiting':>11}{'recomputing':>13}{'written':>11}"]
        for plan in self.plans:
            simulation = plan.simulation
            rows.append(
                f"{format_bytes(plan.budget_bytes):>10}{format_seconds(simulation.step_seconds):>11}"
                f"{format_seconds(simulation.stall_seconds):>11}"
                f"{format_seconds(simulation.recompute_seconds):>13}"
                f"{format_bytes(simulation.written_bytes):>11}"
            )
        return "\n".join(rows)

    __str__ = explain


def compare_budgets(plan_within: Callable[[int], Plan]) -> BudgetComparison:
    """What a step costs with everything kept, with ever less, and with the least that was found."""
    frugal = plan_within(0)
    kept_bytes = frugal.kept_peak_bytes
    least_bytes = frugal.smallest_budget_bytes or 0
    budgets_bytes = {kept_bytes * quarters // 4 for quarters in (1, 2, 3, 4)} | {least_bytes}
    plans = [plan_within(each) for each in sorted(budgets_bytes, reverse=True)]
    return BudgetComparison(tuple(plan for plan in plans if plan.fits))


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
