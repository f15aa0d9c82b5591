"""A step on paper: hand-computed cases, then laws that hold for every step."""

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.errors import PlanError
from shorthaul.offload.policy import simulation
from shorthaul.offload.policy.simulation import Decision, Disk, Simulation, Unit, simulate_step
from tests.offload.drawn_steps import disks, steps

KEEP, OFFLOAD, RECOMPUTE = Decision.KEEP, Decision.OFFLOAD, Decision.RECOMPUTE
UNIT_DISK = Disk(write_bytes_per_second=1.0, read_bytes_per_second=1.0)


def chain(count: int, *, size_bytes: int = 1, forward: float = 1.0) -> list[Unit]:
    """Layers 0..count-1 of one size; layer i is produced at i and used in reverse, twice as slow."""
    end = count * forward
    return [
        Unit(
            f"layer {i}",
            size_bytes,
            size_bytes,
            produced_at_seconds=(i + 1) * forward,
            first_use_at_seconds=end + 2 * forward * (count - 1 - i),
            last_use_at_seconds=end + 2 * forward * (count - i),
        )
        for i in range(count)
    ]


def run(
    units: list[Unit],
    decisions: list[Decision],
    disk: Disk = UNIT_DISK,
    in_flight_bytes: int = 10**9,
    prefetch_bytes: int = 10**9,
    budget_bytes: int | None = None,
) -> Simulation:
    return simulate_step(
        units,
        decisions,
        disk,
        in_flight_bytes=in_flight_bytes,
        prefetch_bytes=prefetch_bytes,
        budget_bytes=budget_bytes,
    )


def test_keeping_everything_costs_memory_and_nothing_else() -> None:
    kept = run(chain(4), [KEEP] * 4)
    assert (kept.peak_live_bytes, kept.extra_seconds, kept.step_seconds) == (4, 0, 12)
    assert (kept.written_bytes, kept.read_bytes, kept.spans) == (0, 0, ())
    assert kept.live_bytes == (
        (0, 0),
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 4),
        (6, 3),
        (8, 2),
        (10, 1),
        (12, 0),
    )


def test_a_fast_disk_hides_everything() -> None:
    offloaded = run(chain(4), [OFFLOAD] * 4, Disk(10.0, 10.0), prefetch_bytes=1)
    assert offloaded.stall_seconds == 0
    # The last layer is used the moment its store begins: forwarded, though written in the end.
    assert offloaded.forwarded == ("layer 3",)
    assert offloaded.written_bytes == 4
    assert offloaded.read_bytes == 3
    assert offloaded.peak_live_bytes == 2  # one in use, one ahead


def test_a_store_that_has_not_begun_is_cancelled_by_the_use() -> None:
    units = [
        Unit("first", 10, 10, 0.0, 30.0, 31.0),
        Unit("second", 10, 10, 1.0, 5.0, 6.0),  # used while "first" is still being written
    ]
    done = run(units, [OFFLOAD, OFFLOAD])
    assert done.never_written == ("second",)
    # The use also starts the read-ahead, which finds "first" on its way out and holds it.
    assert done.forwarded == ("second", "first")
    assert (done.written_bytes, done.read_bytes, done.stall_seconds) == (10, 0, 0)


def test_a_store_under_way_is_forwarded_and_holds_its_bytes_until_it_is_done() -> None:
    done = run([Unit("x", 10, 10, 0.0, 3.0, 4.0)], [OFFLOAD])
    assert (done.step_seconds, done.read_bytes, done.forwarded) == (4, 0, ("x",))
    assert done.live_bytes == ((0, 10), (10, 0))


def test_the_forward_pass_waits_when_too_much_is_in_flight() -> None:
    units = [Unit(name, 10, 10, at, 100.0, 101.0) for name, at in (("a", 0.0), ("b", 1.0))]
    done = run(units, [OFFLOAD, OFFLOAD], in_flight_bytes=15, prefetch_bytes=20)
    assert done.peak_in_flight_bytes == 10
    assert done.spans[:3] == (
        simulation.Span("write", "a", 0, 10),
        simulation.Span("stall", "the write queue to take b", 1, 10),
        simulation.Span("write", "b", 10, 20),
    )


def test_a_unit_larger_than_the_bounds_passes_alone() -> None:
    units = [Unit("a", 10, 10, 0.0, 100.0, 101.0)]
    done = run(units, [OFFLOAD], in_flight_bytes=1, prefetch_bytes=1)
    assert (done.written_bytes, done.read_bytes, done.stall_seconds) == (10, 10, 10)


def test_reading_ahead_begins_at_the_first_use_and_respects_the_window() -> None:
    units = [
        Unit("a", 4, 4, 0.0, 60.0, 61.0),
        Unit("b", 4, 4, 1.0, 50.0, 51.0),
        Unit("kept", 1, 1, 2.0, 20.0, 21.0),
    ]
    wide = run(units, [OFFLOAD, OFFLOAD, KEEP], prefetch_bytes=8)
    assert [(span.name, span.start_seconds) for span in wide.spans if span.lane == "read"] == [
        ("b", 20),
        ("a", 24),
    ]
    narrow = run(units, [OFFLOAD, OFFLOAD, KEEP], prefetch_bytes=7)
    assert [(span.name, span.start_seconds) for span in narrow.spans if span.lane == "read"] == [
        ("b", 20),
        ("a", 50),  # when b is in use it leaves the window
    ]
    assert wide.stall_seconds == narrow.stall_seconds == 0


def test_what_is_waited_for_is_read_when_the_read_under_way_ends() -> None:
    units = [Unit("late", 10, 10, 0.0, 32.0, 33.0), Unit("soon", 10, 10, 1.0, 30.0, 31.0)]
    done = run(units, [OFFLOAD, OFFLOAD])
    assert done.stall_seconds == 10 + 8  # all of "soon", and "late" was 2 of its 10 under way


def test_a_budget_makes_the_forward_pass_wait_for_stores_and_the_read_ahead_for_room() -> None:
    units = [
        Unit("a", 10, 10, 0.0, 60.0, 61.0),
        Unit("b", 10, 10, 1.0, 50.0, 51.0),
        Unit("kept", 10, 10, 2.0, 40.0, 42.0),
    ]
    decisions = [OFFLOAD, OFFLOAD, KEEP]
    free = run(units, decisions)
    bound = run(units, decisions, budget_bytes=20)
    assert (free.peak_live_bytes, free.stall_seconds) == (30, 0)
    assert (bound.peak_live_bytes, bound.stall_seconds) == (20, 8)
    assert [span for span in bound.spans if span.lane == "stall"] == [
        simulation.Span("stall", "room for kept", 2, 10)
    ]
    tight = run(units, decisions, budget_bytes=10)
    assert tight.peak_live_bytes == 10
    reads = [(span.name, span.start_seconds) for span in tight.spans if span.lane == "read"]
    assert reads == [("b", 60), ("a", 71)]  # 18 s late, b when "kept" is gone and a after b


def test_what_cannot_fit_is_held_all_the_same() -> None:
    assert run(chain(3), [KEEP] * 3, budget_bytes=1).peak_live_bytes == 3


def test_compression_is_felt_by_the_disk_and_not_by_memory() -> None:
    done = run([Unit("x", 100, 25, 0.0, 200.0, 201.0)], [OFFLOAD])
    assert (done.peak_live_bytes, done.written_bytes, done.stall_seconds) == (100, 25, 25)


def region_of_two(input_first_use: float = 25.0) -> list[Unit]:
    return [
        Unit("input", 1, 1, 0.0, input_first_use, 30.0, region="block"),
        Unit("hidden", 8, 8, 1.0, 20.0, 22.0, region="block", recompute_seconds=3.0),
        Unit("wide", 16, 16, 2.0, 21.0, 24.0, region="block", recompute_seconds=4.0),
    ]


def test_recomputing_holds_the_input_and_makes_the_rest_at_the_first_use() -> None:
    done = run(region_of_two(), [KEEP, RECOMPUTE, RECOMPUTE])
    assert (done.recompute_seconds, done.stall_seconds, done.step_seconds) == (7, 0, 37)
    assert done.live_bytes == ((0, 1), (20, 25), (29, 17), (31, 1), (37, 0))


def test_an_offloaded_input_is_needed_when_recomputing_starts() -> None:
    done = run(region_of_two(), [OFFLOAD, RECOMPUTE, RECOMPUTE])
    assert done.stall_seconds == 1  # read at 20, where the region starts, and not at 25
    assert done.step_seconds == 30 + 1 + 7


@pytest.mark.parametrize(
    ("decisions", "message"),
    [
        ([KEEP], "expected one decision for each of 3 units, got 1"),
        ([RECOMPUTE, KEEP, KEEP], "unit input cannot be recomputed: keep or offload it"),
        ([KEEP, RECOMPUTE, KEEP], "region block: recompute all of its units or none"),
    ],
)
def test_decisions_that_clash_are_refused(decisions: list[Decision], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        run(region_of_two(), decisions)


def test_units_and_disks_that_cannot_be_are_refused() -> None:
    with pytest.raises(PlanError, match="expected 0 <= produced <= first use <= last use"):
        Unit("x", 1, 1, 2.0, 1.0, 3.0)
    with pytest.raises(PlanError, match="sizes cannot be negative"):
        Unit("x", -1, 1, 0.0, 1.0, 3.0)
    with pytest.raises(PlanError, match="needs a region"):
        Unit("x", 1, 1, 0.0, 1.0, 3.0, recompute_seconds=1.0)
    with pytest.raises(PlanError, match="positive rates"):
        Disk(0.0, 1.0)


def kept_peak_bytes(units: list[Unit]) -> int:
    """The peak of keeping everything, by asking every moment at which something is produced."""
    return max(
        (
            sum(
                each.size_bytes
                for each in units
                if each.produced_at_seconds <= at.produced_at_seconds
                and (
                    at.produced_at_seconds < each.last_use_at_seconds
                    or each.first_use_at_seconds
                    == each.last_use_at_seconds
                    == at.produced_at_seconds
                )
            )
            for at in units
        ),
        default=0,
    )


@settings(deadline=None)
@given(steps())
def test_the_peak_of_keeping_everything_is_the_sum_at_the_fullest_moment(units: list[Unit]) -> None:
    assert run(units, [KEEP] * len(units)).peak_live_bytes == kept_peak_bytes(units)


@settings(deadline=None)
@given(st.data())
def test_laws_of_every_step(data: st.DataObject) -> None:
    units = data.draw(steps())
    recomputed = data.draw(st.sets(st.sampled_from(["region 0", "region 1"])))
    decisions = [
        RECOMPUTE
        if unit.can_recompute and unit.region in recomputed
        else data.draw(st.sampled_from([KEEP, OFFLOAD]))
        for unit in units
    ]
    limit_bytes = data.draw(st.integers(1, 100))
    window_bytes = data.draw(st.integers(1, 100))
    budget_bytes = data.draw(st.none() | st.integers(0, 200))
    done = run(units, decisions, data.draw(disks()), limit_bytes, window_bytes, budget_bytes)

    # Memory: nothing negative, nothing left, never more in flight than allowed.
    assert all(live >= 0 for _, live in done.live_bytes)
    assert done.live_bytes[-1][1] == 0
    assert done.peak_live_bytes == max(live for _, live in done.live_bytes)
    largest = max((each.size_bytes for each in units), default=0)
    assert done.peak_in_flight_bytes <= max(limit_bytes, largest)

    # Bytes: what is offloaded is written unless cancelled, and read unless forwarded.
    offloaded = {
        unit.name: unit.stored_bytes
        for unit, decision in zip(units, decisions, strict=True)
        if decision is OFFLOAD
    }
    assert set(done.never_written) <= set(done.forwarded) <= set(offloaded)
    assert done.written_bytes == sum(offloaded.values()) - sum(
        offloaded[name] for name in done.never_written
    )
    assert done.read_bytes == sum(offloaded.values()) - sum(
        offloaded[name] for name in done.forwarded
    )

    # Time: one thing per lane at a time, and the step is its own time plus what it waited for.
    by_lane = defaultdict(list)
    for span in done.spans:
        by_lane[span.lane].append(span)
    for spans in by_lane.values():
        assert all(a.stop_seconds <= b.start_seconds for a, b in pairwise(spans))
    own_seconds = max((each.last_use_at_seconds for each in units), default=0.0)
    assert done.step_seconds == pytest.approx(own_seconds + done.extra_seconds)
    stalls = sum(span.stop_seconds - span.start_seconds for span in by_lane["stall"])
    assert done.stall_seconds == pytest.approx(stalls)


@settings(deadline=None)
@given(steps())
def test_a_disk_that_takes_no_time_never_stalls(units: list[Unit]) -> None:
    immediate = Disk(1e300, 1e300)
    done = run(units, [OFFLOAD] * len(units), immediate)
    assert done.stall_seconds == pytest.approx(0, abs=1e-200)
