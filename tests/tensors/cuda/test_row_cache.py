"""Which rows are kept on the device is a pure plan: a map that is its own inverse."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from shorthaul.tensors.cuda.row_cache import NOT_CACHED, DeviceRowCache, plan_hot_rows
from shorthaul.tensors.kernels.stored_rows import StoredRows


@given(
    uses=st.lists(st.integers(0, 5), max_size=30),
    budget_bytes=st.integers(-5, 400),
    row_bytes=st.integers(0, 30),
)
def test_the_map_and_the_rows_agree(uses: list[int], budget_bytes: int, row_bytes: int) -> None:
    plan = plan_hot_rows(
        torch.tensor(uses, dtype=torch.int64), budget_bytes=budget_bytes, row_bytes=row_bytes
    )
    hot = plan.hot_ids.tolist()
    assert len(hot) * row_bytes <= max(0, budget_bytes)
    assert [plan.slots[each] for each in hot] == list(range(len(hot)))
    cold = set(range(len(uses))) - set(hot)
    assert all(plan.slots[each] == NOT_CACHED for each in cold)
    assert min((uses[each] for each in hot), default=9) >= max(
        (uses[each] for each in cold), default=0
    )


def test_hits_are_what_the_plan_covers() -> None:
    plan = plan_hot_rows(torch.tensor([1, 7, 3, 7]), budget_bytes=16, row_bytes=8)
    assert plan.hit_rate(torch.tensor([1, 3, 0, 2])) == 0.5
    assert plan.hit_rate(torch.tensor([], dtype=torch.int64)) == 0.0
    assert plan.index_bytes == 16


def test_slots_hold_the_hot_rows() -> None:
    values = torch.randn(10, 6)[:, 1:4]
    plan = plan_hot_rows(torch.arange(10), budget_bytes=4 * 12, row_bytes=12)
    cache = DeviceRowCache.fill(StoredRows(values, values.dtype), plan, "cpu")
    assert cache.values.is_contiguous()
    assert torch.equal(cache.values, values[6:])
    assert torch.equal(cache.slots, plan.slots)
