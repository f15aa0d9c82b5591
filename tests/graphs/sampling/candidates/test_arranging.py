"""Candidates by time with their weights added up: the kernel against plain Python."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.graphs.sampling.candidates.arranging import Arranged, arrange_plainly, arrange_rows

NUMBERS = st.tuples(
    st.integers(0, 2),
    st.sampled_from([0, 1, 2, -(2**63), 2**63 - 1]),
    st.sampled_from([0.0, 0.1, 1e30]),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(NUMBERS, max_size=8), max_size=6),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([torch.int32, torch.int64]),
)
def test_the_kernel_arranges_as_plain_python_does(
    rows: list[list[tuple[int, int, float]]],
    by_relation: bool,
    has_times: bool,
    has_weights: bool,
    dtype: torch.dtype,
) -> None:
    rows = [
        sorted(row, key=lambda each: each[0]) for row in rows
    ]  # an index has relations ascending
    flat = [each for row in rows for each in row]
    starts = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    relations = torch.tensor([each[0] for each in flat], dtype=dtype) if by_relation else None
    times = torch.tensor([each[1] for each in flat], dtype=torch.int64) if has_times else None
    weights = torch.tensor([each[2] for each in flat], dtype=torch.float64) if has_weights else None
    found = arrange_rows(starts, dtype, relations=relations, times=times, weights=weights)
    expected = Arranged(*(None if each is None else torch.full_like(each, -1) for each in found))
    arrange_plainly(starts, relations, times, weights, expected)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert torch.equal(one, other)
