"""Plans against the best there is, against the simple alternatives, and in words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.errors import PlanError
from shorthaul.offload.policy.planner import (
    Measured,
    Plan,
    explain_drift,
    needs_new_plan,
    plan_step,
)
from shorthaul.offload.policy.simulation import Decision, Disk, Unit, simulate_step
from tests.offload.drawn_steps import disks, steps
from tests.offload.exact_plan import find_exact_plan

KEEP, OFFLOAD, RECOMPUTE = Decision.KEEP, Decision.OFFLOAD, Decision.RECOMPUTE

# How far from the best plan the search may end, on steps of up to six units: in the time of a step,
# and in the budget for which it finds a plan. Of 2,800 random steps none was slower than the best;
# three had a plan that the search missed, and it then asked for up to 1.8 times the budget needed.
TIME_FACTOR = 1.25
BUDGET_FACTOR = 2.0


def limits() -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries(
        {
            "budget_bytes": st.integers(0, 150),
            "disk": disks(),
            "in_flight_bytes": st.integers(1, 100),
            "prefetch_bytes": st.integers(1, 100),
            "endurance_bytes_per_step": st.none() | st.integers(0, 150),
        }
    )


@settings(deadline=None)
@given(steps(), limits())
def test_a_plan_that_fits_never_exceeds_the_budget_when_played_through(units, limit) -> None:
    plan = plan_step(units, **limit)
    again = simulate_step(
        units,
        plan.decisions,
        limit["disk"],
        in_flight_bytes=limit["in_flight_bytes"],
        prefetch_bytes=limit["prefetch_bytes"],
        budget_bytes=limit["budget_bytes"] if plan.fits else plan.smallest_budget_bytes,
    )
    assert again == plan.simulation
    assert plan.fits == (again.peak_live_bytes <= limit["budget_bytes"])
    if limit["endurance_bytes_per_step"] is not None:
        assert again.written_bytes <= plan.planned_write_bytes
        assert plan.planned_write_bytes <= limit["endurance_bytes_per_step"]


@settings(deadline=None)
@given(steps(), limits())
def test_the_budget_named_when_nothing_fits_does_fit(units, limit) -> None:
    plan = plan_step(units, **limit)
    if plan.fits:
        assert plan.smallest_budget_bytes is None
        return
    assert plan.smallest_budget_bytes > limit["budget_bytes"]
    enough = plan_step(units, **(limit | {"budget_bytes": plan.smallest_budget_bytes}))
    assert enough.fits


@settings(deadline=None)
@given(steps(), limits())
def test_a_plan_is_never_worse_than_keeping_or_offloading_everything(units, limit) -> None:
    plan = plan_step(units, **limit)
    for decision in (KEEP, OFFLOAD):
        simple = simulate_step(
            units,
            [decision] * len(units),
            limit["disk"],
            in_flight_bytes=limit["in_flight_bytes"],
            prefetch_bytes=limit["prefetch_bytes"],
            budget_bytes=limit["budget_bytes"],
        )
        allowed_bytes = limit["endurance_bytes_per_step"]
        planned_bytes = sum(unit.stored_bytes for unit in units) if decision is OFFLOAD else 0
        is_allowed = allowed_bytes is None or planned_bytes <= allowed_bytes
        if is_allowed and simple.peak_live_bytes <= limit["budget_bytes"]:
            assert plan.fits
            assert plan.simulation.extra_seconds <= simple.extra_seconds + 1e-9


@settings(
    derandomize=True, deadline=None
)  # no bound is proven: these cases are the same every time
@given(steps(max_units=6), limits())
def test_a_plan_is_close_to_the_best_there_is(units, limit) -> None:
    plan = plan_step(units, **limit)
    exact = find_exact_plan(units, **limit)
    if plan.fits:
        assert exact.best is not None
        assert plan.simulation.step_seconds <= TIME_FACTOR * exact.best.step_seconds
        assert plan.simulation.extra_seconds >= exact.best.extra_seconds - 1e-9  # the oracle's own
    else:
        assert plan.smallest_budget_bytes <= BUDGET_FACTOR * exact.smallest_budget_bytes


def chain(count: int, size_bytes: int) -> list[Unit]:
    """Equal layers, one second forward and two backward each."""
    return [
        Unit(
            f"layer {i}",
            size_bytes,
            size_bytes,
            i + 1.0,
            3.0 * count - 2 * i,
            3.0 * count - 2 * i + 2,
        )
        for i in range(count)
    ]


@settings(deadline=None)
@given(st.integers(2, 12), st.integers(1, 12), st.sampled_from([100.0, 150.0, 400.0]))
def test_on_equal_layers_a_disk_that_keeps_up_takes_the_first_and_the_last_are_kept(
    count: int, budget_layers: int, bandwidth: float
) -> None:
    plan = plan_step(
        chain(count, 100),
        budget_bytes=100 * budget_layers,
        disk=Disk(bandwidth, bandwidth),
        in_flight_bytes=200,
        prefetch_bytes=100,
    )
    if plan.fits and plan.simulation.extra_seconds == 0:
        offloaded = plan.decisions.count(OFFLOAD)
        assert plan.decisions == (OFFLOAD,) * offloaded + (KEEP,) * (count - offloaded)
        if offloaded:  # and no more of them than needed
            fewer = (OFFLOAD,) * (offloaded - 1) + (KEEP,) * (count - offloaded + 1)
            held = simulate_step(
                plan.units,
                fewer,
                plan.disk,
                in_flight_bytes=200,
                prefetch_bytes=100,
                budget_bytes=plan.budget_bytes,
            )
            assert held.peak_live_bytes > plan.budget_bytes or held.extra_seconds > 0


def block(index: int, recompute_seconds: float) -> list[Unit]:
    region, end = f"block {index}", 24.0 - 4 * index
    return [
        Unit(f"{region} input", 10, 10, 2.0 * index, end, end + 4, region),
        Unit(f"{region} hidden", 90, 90, 2.0 * index + 1, end, end + 3, region, recompute_seconds),
    ]


def plan_blocks(disk: Disk, recompute_seconds: float, **limit: int) -> Plan:
    units = [unit for index in range(4) for unit in block(index, recompute_seconds)]
    return plan_step(
        units, budget_bytes=250, disk=disk, in_flight_bytes=100, prefetch_bytes=100, **limit
    )


def test_a_slow_disk_makes_it_recompute_and_a_fast_one_offload() -> None:
    slow = plan_blocks(Disk(2.0, 2.0), recompute_seconds=1.0)
    fast = plan_blocks(Disk(1000.0, 1000.0), recompute_seconds=1.0)
    assert slow.fits
    assert RECOMPUTE in slow.decisions
    assert fast.fits
    assert RECOMPUTE not in fast.decisions
    assert fast.simulation.extra_seconds == 0


def test_a_drive_with_no_writes_left_makes_it_recompute() -> None:
    plan = plan_blocks(Disk(1000.0, 1000.0), recompute_seconds=1.0, endurance_bytes_per_step=0)
    assert plan.fits
    assert OFFLOAD not in plan.decisions
    assert RECOMPUTE in plan.decisions


def test_a_plan_says_what_it_does() -> None:
    plan = plan_step(
        chain(6, 2**20),
        budget_bytes=4 * 2**20,
        disk=Disk(1e9, 1e9),
        in_flight_bytes=2**20,
        prefetch_bytes=2**20,
        endurance_bytes_per_step=2**30,
    )
    assert plan.explain() == (
        "the plan fits\n"
        "writes are limited to 1.0 GiB per step by the drive's endurance; "
        "the plan writes 2.0 MiB\n"
        "peak 4.0 MiB of a budget of 4.0 MiB; keeping everything takes 6.0 MiB\n"
        "step 20.0 s: 20.0 s of its own, 0 ns waiting, 0 ns recomputing\n"
        "disk: 2.0 MiB written, 2.0 MiB read, 0 forwarded from memory\n"
        "\n"
        "decision   storages       bytes  which\n"
        "offload           2     2.0 MiB  layer 0 .. layer 1\n"
        "keep              4     4.0 MiB  layer 2 .. layer 5"
    )
    assert plan.by_name()["layer 1"] is OFFLOAD


def test_a_budget_that_is_too_small_is_answered_with_one_that_is_not() -> None:
    plan = plan_step(
        chain(6, 2**20),
        budget_bytes=2**19,
        disk=Disk(1e9, 1e9),
        in_flight_bytes=2**20,
        prefetch_bytes=2**20,
    )
    assert not plan.fits
    assert plan.explain().startswith(
        "no plan was found for a budget of 512.0 KiB (524,288 bytes): "
        "the smallest budget that works is 1.0 MiB (1,048,576 bytes).\n"
        "  Raise `budget` to that, or lower the batch size.\n"
        "  What follows is the plan for that budget.\n"
    )


def test_limits_below_zero_are_refused() -> None:
    with pytest.raises(PlanError, match="expected limits of at least 0 bytes, got a budget of -1"):
        plan_step([], budget_bytes=-1, disk=Disk(1.0, 1.0), in_flight_bytes=1, prefetch_bytes=1)


def as_planned(plan: Plan) -> Measured:
    return Measured(
        plan.disk.write_bytes_per_second,
        plan.disk.read_bytes_per_second,
        plan.compute_seconds,
        sum(unit.size_bytes for unit in plan.units),
    )


@pytest.fixture
def plan() -> Plan:
    return plan_step(
        chain(4, 100),
        budget_bytes=400,
        disk=Disk(1000.0, 2000.0),
        in_flight_bytes=100,
        prefetch_bytes=100,
    )


def test_a_plan_holds_while_its_measures_stay_in_their_bands(plan: Plan) -> None:
    assert not needs_new_plan(plan, as_planned(plan))
    wavering = Measured(1250.0, 1600.0, plan.compute_seconds * 1.25, 400)
    assert not needs_new_plan(plan, wavering)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"write_bytes_per_second": 500.0},
            "write bandwidth (bytes/s): planned for 1,000, now 500",
        ),
        ({"read_bytes_per_second": 4e3}, "read bandwidth (bytes/s): planned for 2,000, now 4,000"),
        ({"compute_seconds": 28.0}, "time of a step (s): planned for 14, now 28"),
        ({"saved_bytes": 500}, "saved bytes: planned for 400, now 500"),
    ],
)
def test_a_drift_asks_for_a_new_plan_and_says_why(plan: Plan, changed, reason: str) -> None:
    measured = Measured(**(vars(as_planned(plan)) | changed))
    assert needs_new_plan(plan, measured)
    assert explain_drift(plan, measured) == (reason,)


def test_one_bad_step_is_smoothed_away_and_a_lasting_change_is_not(plan: Plan) -> None:
    usual = as_planned(plan)
    bad = Measured(**(vars(usual) | {"write_bytes_per_second": 100.0}))
    after_one = usual.smoothed(bad)
    assert not needs_new_plan(plan, after_one)
    lasting = after_one
    for _ in range(5):
        lasting = lasting.smoothed(bad)
    assert needs_new_plan(plan, lasting)


def test_sizes_are_not_smoothed(plan: Plan) -> None:
    other = Measured(**(vars(as_planned(plan)) | {"saved_bytes": 800}))
    assert as_planned(plan).smoothed(other).saved_bytes == 800
