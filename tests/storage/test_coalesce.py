"""Read plans against a plain oracle: every wanted byte is there, once, aligned, within the limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shorthaul.storage import ReadPlan, plan_reads

ranges = st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 600)), max_size=40)


def plan_plainly(
    wanted: list[tuple[int, int]], alignment: int, gap: int, largest: int
) -> list[tuple[int, int]]:
    """Begin and end of each request, one range at a time."""
    requests: list[tuple[int, int]] = []
    blocks = [
        (offset - offset % alignment, offset + length + -(offset + length) % alignment)
        for offset, length in wanted
    ]
    for start, end in sorted(blocks, key=lambda block: (block[0], -block[1])):
        if requests:
            first, last = requests[-1]
            reach = max(last, end)
            if start - last <= gap and (reach == last or reach - first <= largest):
                requests[-1] = (first, reach)
                continue
        requests.append((start, end))
    return requests


def requests_of(plan: ReadPlan) -> list[tuple[int, int]]:
    starts = plan.request_offsets_bytes
    return list(zip(starts.tolist(), (starts + plan.request_lengths_bytes).tolist(), strict=True))


def verify_plan(plan: ReadPlan, wanted: list[tuple[int, int]]) -> None:
    """Each range lies inside its request, and the target positions follow one another."""
    assert len(plan.range_requests) == len(wanted)
    for index, (offset, length) in enumerate(wanted):
        request = plan.range_requests[index]
        inside = plan.range_offsets_bytes[index]
        assert plan.request_offsets_bytes[request] + inside == offset
        assert inside >= 0
        assert inside + length <= plan.request_lengths_bytes[request]
        position = plan.request_positions_bytes[request]
        assert plan.range_positions_bytes[index] == position + inside
    lengths = plan.request_lengths_bytes
    assert plan.request_positions_bytes.tolist() == (np.cumsum(lengths) - lengths).tolist()
    assert plan.read_bytes == lengths.sum()
    assert (np.diff(plan.request_offsets_bytes) > 0).all()


@given(
    ranges,
    st.sampled_from([1, 3, 512, 4096]),
    st.integers(0, 2000),
    st.sampled_from([1, 512, 1000, 4096, 100_000]),
)
def test_a_plan_is_what_the_plain_one_is(wanted, alignment, gap, largest) -> None:
    plan = plan_reads(
        [offset for offset, _ in wanted],
        [length for _, length in wanted],
        alignment_bytes=alignment,
        largest_gap_bytes=gap,
        largest_request_bytes=largest,
    )
    assert requests_of(plan) == plan_plainly(wanted, alignment, gap, largest)
    verify_plan(plan, wanted)


@given(ranges, st.sampled_from([1, 512]), st.integers(0, 2000), st.floats(0, 2))
def test_gaps_stay_within_the_waste(wanted, alignment, gap, waste) -> None:
    def plan(**more) -> ReadPlan:
        return plan_reads(
            [offset for offset, _ in wanted],
            [length for _, length in wanted],
            alignment_bytes=alignment,
            largest_gap_bytes=gap,
            largest_request_bytes=10**6,
            **more,
        )

    limited = plan(largest_waste=waste)
    verify_plan(limited, wanted)
    needed = plan_reads(
        [offset for offset, _ in wanted],
        [length for _, length in wanted],
        alignment_bytes=alignment,
        largest_gap_bytes=0,
        largest_request_bytes=10**6,
    ).read_bytes
    assert limited.gap_bytes == limited.read_bytes - needed
    assert limited.gap_bytes <= waste * needed
    assert len(plan().request_offsets_bytes) <= len(limited.request_offsets_bytes)


@given(ranges, st.sampled_from([1, 512, 4096]), st.integers(0, 5000))
def test_nothing_is_read_beyond_the_end(wanted, alignment, beyond) -> None:
    end = max((offset + length for offset, length in wanted), default=0) + beyond
    plan = plan_reads(
        [offset for offset, _ in wanted],
        [length for _, length in wanted],
        alignment_bytes=alignment,
        largest_gap_bytes=0,
        largest_request_bytes=10**6,
        end_bytes=end,
    )
    verify_plan(plan, wanted)
    for start, stop in requests_of(plan):
        assert start % alignment == 0
        assert stop <= end
        assert stop % alignment == 0 or stop == end


def test_the_oracle_merges_and_cuts() -> None:
    """So that agreeing with it means something."""
    assert plan_plainly([(0, 10), (20, 10)], 1, 9, 100) == [(0, 10), (20, 30)]
    assert plan_plainly([(0, 10), (20, 10)], 1, 10, 100) == [(0, 30)]
    assert plan_plainly([(0, 10), (20, 10)], 1, 10, 29) == [(0, 10), (20, 30)]


def test_small_gaps_are_bridged_first() -> None:
    plan = plan_reads(
        [0, 150, 300, 420],
        100,
        alignment_bytes=1,
        largest_gap_bytes=1000,
        largest_request_bytes=1000,
        largest_waste=0.1,
    )
    assert requests_of(plan) == [(0, 100), (150, 250), (300, 520)]
    assert plan.gap_bytes == 20


def test_nothing_wanted_is_an_empty_plan() -> None:
    plan = plan_reads([], [], alignment_bytes=512, largest_gap_bytes=0, largest_request_bytes=1)
    assert plan.read_bytes == 0
    assert plan.range_positions_bytes.tolist() == []


@pytest.mark.parametrize(
    ("offsets", "lengths", "options", "message"),
    [
        ([-1], [1], {}, "must not be negative"),
        ([0], [0], {}, "lengths must be positive"),
        ([[0]], 1, {}, "one dimension"),
        ([0, 90], [10, 11], {"end_bytes": 100}, "range 1 ends at byte 101"),
        ([0], [1], {"alignment_bytes": 0}, "must be positive"),
        ([0], [1], {"largest_gap_bytes": -1}, "not negative"),
        ([0], [1], {"largest_request_bytes": 0}, "must be positive"),
    ],
)
def test_refuses_what_cannot_be_planned(offsets, lengths, options, message) -> None:
    limits = {"alignment_bytes": 1, "largest_gap_bytes": 0, "largest_request_bytes": 100}
    with pytest.raises(ValueError, match=message):
        plan_reads(offsets, lengths, **(limits | options))


def test_refuses_offsets_that_are_not_whole() -> None:
    with pytest.raises(TypeError, match="whole numbers"):
        plan_reads([0.5], [1], alignment_bytes=1, largest_gap_bytes=0, largest_request_bytes=100)


def test_many_ranges_are_planned_without_a_loop_over_them() -> None:
    """150,000 rows; the benchmark has the time, here is the sum."""
    random = np.random.default_rng(0)
    rows = random.integers(0, 10**7, 150_000)
    plan = plan_reads(
        rows * 512,
        512,
        alignment_bytes=512,
        largest_gap_bytes=0,
        largest_request_bytes=1 << 20,
    )
    assert plan.read_bytes == len(np.unique(rows)) * 512
