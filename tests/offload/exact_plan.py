"""The best plan there is, by trying every one: the oracle for `plan_step` on small steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from shorthaul.offload.policy.simulation import Decision, Disk, Simulation, Unit, simulate_step


@dataclass(frozen=True)
class ExactPlan:
    best: Simulation | None  # the fastest that fits; None when nothing does
    smallest_budget_bytes: int  # that any plan within endurance has been seen to fit


def every_decision(units: Sequence[Unit]) -> Iterator[tuple[Decision, ...]]:
    """Keep or offload each unit, times recompute or not each region; each plan once."""
    regions = sorted({unit.region for unit in units if unit.can_recompute and unit.region})
    for is_recomputed in product((False, True), repeat=len(regions)):
        recomputed = {
            region for region, chosen in zip(regions, is_recomputed, strict=True) if chosen
        }
        yield from product(
            *(
                (Decision.RECOMPUTE,)
                if unit.can_recompute and unit.region in recomputed
                else (Decision.KEEP, Decision.OFFLOAD)
                for unit in units
            )
        )


def find_exact_plan(
    units: Sequence[Unit],
    *,
    budget_bytes: int,
    disk: Disk,
    in_flight_bytes: int,
    prefetch_bytes: int,
    endurance_bytes_per_step: int | None = None,
) -> ExactPlan:
    """For at most ten units: 1,024 plans, and at most four times as many with two regions."""
    assert len(units) <= 10, "enumeration is for small steps"
    best: Simulation | None = None
    smallest_budget_bytes: int | None = None
    for decisions in every_decision(units):
        planned_write_bytes = sum(
            unit.stored_bytes
            for unit, decision in zip(units, decisions, strict=True)
            if decision is Decision.OFFLOAD
        )
        if endurance_bytes_per_step is not None and planned_write_bytes > endurance_bytes_per_step:
            continue
        limits = {"in_flight_bytes": in_flight_bytes, "prefetch_bytes": prefetch_bytes}
        run = simulate_step(units, decisions, disk, **limits, budget_bytes=budget_bytes)
        # The smallest budget for these decisions: as much as they take when given as much.
        enough_bytes, needed_bytes = -1, 0
        while needed_bytes > enough_bytes:
            enough_bytes = needed_bytes
            frugal = simulate_step(units, decisions, disk, **limits, budget_bytes=enough_bytes)
            needed_bytes = frugal.peak_live_bytes
        if smallest_budget_bytes is None or enough_bytes < smallest_budget_bytes:
            smallest_budget_bytes = enough_bytes
        is_better = best is None or run.extra_seconds < best.extra_seconds
        if run.peak_live_bytes <= budget_bytes and is_better:
            best = run
    assert smallest_budget_bytes is not None, "keeping everything is always allowed"
    return ExactPlan(best, smallest_budget_bytes)
