"""Plans of which edges are sorted together."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.graphs.streams.buckets import find_finer_blocks, plan_blocks, plan_buckets


@settings(deadline=None)
@given(st.integers(0, 5000), st.integers(1, 64))
def test_blocks_hold_each_key_once(keys: int, most_blocks: int) -> None:
    blocks = plan_blocks(keys, most_blocks)
    assert blocks.starts[0] == 0
    assert blocks.starts[-1] == keys
    assert bool((blocks.starts.diff() >= 0).all())
    every = torch.arange(keys)
    numbers = blocks.number(every)
    assert bool((blocks.starts[numbers] <= every).all())
    assert bool((every < blocks.starts[numbers + 1]).all())


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 299), max_size=200),
    st.integers(1, 20),
    st.integers(1, 50),
    st.integers(1, 8),
)
def test_buckets_are_as_large_as_they_may_be_and_no_larger(
    drawn: list[int], most_edges: int, most_keys: int, most_blocks: int
) -> None:
    keys = torch.tensor(drawn, dtype=torch.int64)
    blocks = plan_blocks(300, most_blocks)
    while (finer := find_finer_blocks(blocks, blocks.count(keys), most_edges)) is not None:
        blocks = finer
    counts = blocks.count(keys)
    buckets = plan_buckets(blocks, counts, most_edges=most_edges, most_keys=most_keys)
    assert buckets.blocks.starts[0] == 0
    assert buckets.blocks.starts[-1] == 300
    assert buckets.edges[-1] == len(drawn)
    assert torch.equal(buckets.blocks.count(keys), buckets.edges.diff())
    widths = buckets.blocks.starts.diff()
    widest = int(blocks.starts.diff().max())
    for bucket, (width, edges) in enumerate(
        zip(widths.tolist(), buckets.edges.diff().tolist(), strict=True)
    ):
        assert edges <= most_edges or width == 1
        assert width <= max(most_keys, widest)
        if bucket + 1 < len(widths):  # the first block of the next one would have been too much
            at = int(torch.searchsorted(blocks.starts, buckets.blocks.starts[bucket + 1]))
            more = int(blocks.starts[at + 1] - buckets.blocks.starts[bucket])
            assert edges + int(counts[at]) > most_edges or more > most_keys
