"""The parts of the search that plans depend on; whole plans are tested in test_planner.py."""

import pytest
from hypothesis import given, settings

from shorthaul.offload.policy.plan_search import Search, settle
from shorthaul.offload.policy.simulation import Decision, Disk, Unit, simulate_step
from tests.offload.drawn_steps import disks, steps

KEEP, OFFLOAD, RECOMPUTE = Decision.KEEP, Decision.OFFLOAD, Decision.RECOMPUTE


def search(units: list[Unit], disk: Disk, budget_bytes: int, endurance_bytes=None) -> Search:
    def simulate(decisions, within_bytes):
        return simulate_step(
            units,
            decisions,
            disk,
            in_flight_bytes=50,
            prefetch_bytes=50,
            budget_bytes=within_bytes,
        )

    return Search(units, disk, simulate, budget_bytes, endurance_bytes)


LONG = Unit("long", 10, 10, 0.0, 90.0, 91.0)
SHORT = Unit("short", 10, 10, 40.0, 50.0, 51.0)
WIDE = Unit("wide", 40, 40, 30.0, 60.0, 61.0)


def test_what_fits_is_kept() -> None:
    assert search([LONG, SHORT], Disk(1.0, 1.0), 20).find() == (KEEP, KEEP)


def test_the_longest_lived_goes_first() -> None:
    assert search([SHORT, LONG], Disk(10.0, 10.0), 10).find() == (KEEP, OFFLOAD)


def test_endurance_takes_what_is_small_enough_or_nothing() -> None:
    units = [WIDE, LONG]
    assert search(units, Disk(100.0, 100.0), 40).find() == (KEEP, OFFLOAD)
    limited = search(units, Disk(100.0, 100.0), 40, endurance_bytes=39).find()
    assert limited == (KEEP, OFFLOAD)
    assert search(units, Disk(100.0, 100.0), 40, endurance_bytes=9).find() == (KEEP, KEEP)


@settings(deadline=None)
@given(steps(max_units=6), disks())
def test_the_lowest_peak_does_not_depend_on_the_budget(units: list[Unit], disk: Disk) -> None:
    found = {search(units, disk, budget)._lowest_peak() for budget in (0, 17, 1000)}
    assert len(found) == 1


@settings(deadline=None)
@given(steps(max_units=6), disks())
@pytest.mark.parametrize("refused_bytes", [-1, 20, 60])
def test_a_settled_budget_holds_what_is_played_within_it(
    refused_bytes: int, units: list[Unit], disk: Disk
) -> None:
    decisions = (OFFLOAD,) * len(units)
    simulate = search(units, disk, 0).simulate
    if simulate(decisions, refused_bytes).peak_live_bytes <= refused_bytes:
        return
    settled = settle(lambda within: simulate(decisions, within), refused_bytes)
    assert settled.peak_live_bytes > refused_bytes
    again = simulate(decisions, settled.peak_live_bytes)
    assert again.peak_live_bytes <= settled.peak_live_bytes
