"""The generated caches decide as the plain ones do, on whatever hypothesis draws."""

from __future__ import annotations

import gc

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shorthaul.errors import RowArgumentError
from shorthaul.settings import settings
from shorthaul.tensors.tables.disk.plain_cache import PlainBelady, PlainSieve, PlainStatic
from shorthaul.tensors.tables.disk.row_cache import RowCache, emit_row_cache

batches = st.lists(st.lists(st.integers(0, 40), unique=True, max_size=12), max_size=25)


@hypothesis.settings(deadline=None)
@given(
    batches, st.integers(0, 9), st.sampled_from(["static", "sieve", "belady"]), st.integers(0, 4)
)
def test_the_same_slots_as_the_plain_cache(drawn, capacity, policy, window):
    hot = [3, 5, 3, 8, 1, 20]
    plain = {
        "static": PlainStatic(min(capacity, len(hot)), hot),
        "sieve": PlainSieve(capacity),
        "belady": PlainBelady(capacity),
    }[policy]
    chosen = torch.tensor(hot) if policy == "static" else policy
    cache = RowCache(chosen, budget_bytes=capacity * 8, row_bytes=8)
    held: dict[int, int] = {}
    for batch in drawn[:window]:
        plain.expect(batch)
        cache.expect(torch.tensor(batch, dtype=torch.int64))
    for number, batch in enumerate(drawn):
        ids = torch.tensor(batch, dtype=torch.int64)
        found = cache.look_up(ids)
        assert found.tolist() == plain.look_up(batch)
        for each, slot in zip(batch, found.tolist(), strict=True):
            assert slot == -1 or held[slot] == each  # what lies there is what was put there
        missing = ids[found < 0]
        given_slots = cache.admit(missing)
        assert given_slots.tolist() == plain.admit(missing.tolist())
        kept = [slot for slot in given_slots.tolist() if slot >= 0]
        assert len(set(kept)) == len(kept)
        pairs = zip(given_slots.tolist(), missing.tolist(), strict=True)
        held |= {slot: each for slot, each in pairs if slot >= 0}
        if number + window < len(drawn):
            plain.expect(drawn[number + window])
            cache.expect(torch.tensor(drawn[number + window], dtype=torch.int64))
        if number == 15:
            plain.forget_expected()
            cache.forget_expected()


def test_many_ids_and_evictions():
    generator = torch.Generator().manual_seed(3)
    cache, plain = RowCache("sieve", budget_bytes=300, row_bytes=1), PlainSieve(300)
    for _ in range(40):
        ids = torch.randint(10**12, (200,), generator=generator) % 997 * 10**9
        ids = torch.unique(ids)
        found = cache.look_up(ids)
        assert found.tolist() == plain.look_up(ids.tolist())
        missing = ids[found < 0]
        assert cache.admit(missing).tolist() == plain.admit(missing.tolist())


@pytest.mark.parametrize("policy", ["sieve", "belady", torch.tensor([4, 2])], ids=str)
def test_without_a_compiler_the_plain_caches_decide(policy):
    with settings.override(kernels="torch"):
        cache = RowCache(policy, budget_bytes=16, row_bytes=8)
        cache.expect(torch.tensor([2]))
        assert cache.admit(torch.tensor([2])).tolist() in ([0], [1])
        assert (cache.look_up(torch.tensor([2])) >= 0).all()
        cache.forget_expected()


def test_the_budget_is_kept():
    cache = RowCache("sieve", budget_bytes="1KiB", row_bytes=100)
    assert cache.capacity == 10
    assert cache.rows.shape == (10, 100)
    assert repr(cache) == "RowCache(sieve, 10 rows of 100 bytes)"
    assert RowCache(torch.tensor([1]), budget_bytes="1KiB", row_bytes=100).capacity == 1


@pytest.mark.parametrize("policy", ["lru", torch.tensor([-1])], ids=str)
def test_a_policy_that_does_not_exist_is_refused(policy):
    with pytest.raises(RowArgumentError, match="'sieve', 'belady' or the ids of the hot rows"):
        RowCache(policy, budget_bytes=100, row_bytes=1)


def test_a_cache_that_is_gone_leaves_nothing():
    cache = RowCache("belady", budget_bytes=80, row_bytes=8)
    rows = cache.rows
    del cache
    gc.collect()
    rows.fill_(1)  # still somebody's memory


def test_the_source_says_what_it_is():
    source = emit_row_cache()
    assert "shorthaul/tensors/kernels/cache.h" in source.headers()
    assert source.functions[0].name == "cache_open"
