"""The published rule against its formula, written out a second time in the plainest way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shorthaul.errors import PlanError
from shorthaul.offload.policy.simulation import Decision
from shorthaul.offload.policy.ssdtrain import Scope, choose_ssdtrain, estimate_ssdtrain_bandwidth


def first_kept(scopes: list[Scope], bandwidth: float, whole: float) -> int:
    for k in range(len(scopes)):
        volume = sum(each.packed_bytes for each in scopes[:k]) + 2 * scopes[k].packed_bytes
        window = 3 * whole - 2 * sum(each.forward_seconds for each in scopes[:k])
        if volume / window > bandwidth:
            return k
    return len(scopes)


@given(
    # Powers of two keep every sum exact, so that both ways of writing the rule agree to the bit.
    st.lists(
        st.builds(Scope, st.just("s"), st.sampled_from([0.25, 1.0, 4.0]), st.integers(0, 500))
    ),
    st.sampled_from([1.0, 8.0, 64.0, 512.0]),
    st.sampled_from([None, 0.5]),
)
def test_a_prefix_is_offloaded_as_the_formula_says(
    scopes: list[Scope], bandwidth: float, head_seconds: float | None
) -> None:
    own = sum(each.forward_seconds for each in scopes)
    whole = own + (head_seconds or 0.0)  # time outside every scope counts only in T_f
    kept_from = first_kept(scopes, bandwidth, whole)
    decisions = choose_ssdtrain(
        scopes,
        bytes_per_second=bandwidth,
        forward_seconds=None if head_seconds is None else whole,
    )
    assert decisions == (Decision.OFFLOAD,) * kept_from + (Decision.KEEP,) * (
        len(scopes) - kept_from
    )


def test_the_bandwidth_is_bytes_over_the_time_of_all_stores() -> None:
    assert estimate_ssdtrain_bandwidth(600, 3.0) == 200.0


def test_rates_and_times_that_cannot_be_are_refused() -> None:
    with pytest.raises(PlanError, match="expected a positive bandwidth"):
        choose_ssdtrain([], bytes_per_second=0.0)
    with pytest.raises(PlanError, match="expected a positive time"):
        estimate_ssdtrain_bandwidth(1, 0.0)
