"""The plain caches on traces small enough to follow by hand."""

from __future__ import annotations

import pytest

from shorthaul.tensors.tables.disk.plain_cache import (
    PlainBelady,
    PlainCache,
    PlainSieve,
    PlainStatic,
)


def replay(cache: PlainCache, trace: list[int]) -> list[int]:
    """The ids that were hits, one id at a time."""
    hits = []
    for each in trace:
        if cache.look_up([each]) != [-1]:
            hits.append(each)
        else:
            cache.admit([each])
    return hits


def test_sieve_spares_what_was_used():
    cache = PlainSieve(3)
    assert replay(cache, [1, 2, 3, 1]) == [1]
    assert replay(cache, [4]) == []  # 2 gives way: 1 was used, and is spared once
    assert set(cache.slots) == {1, 3, 4}
    assert replay(cache, [5]) == []  # the hand goes on with 3, though 1 is older
    assert set(cache.slots) == {1, 4, 5}


def test_the_hand_begins_again_with_the_oldest():
    cache = PlainSieve(2)
    replay(cache, [1, 2, 1, 2, 3])  # both were used: the hand comes round, and 1 gives way
    assert set(cache.slots) == {2, 3}
    replay(cache, [4])
    assert set(cache.slots) == {3, 4}


def test_belady_keeps_what_is_used_soonest():
    cache = PlainBelady(2)
    for batch in ([1], [2], [3], [2], [1]):
        cache.expect(batch)
    assert replay(cache, [1, 2, 3, 2, 1]) == [2, 1]  # 3 is never used again: it is not let in
    assert set(cache.slots) == {1, 2}


def test_belady_forgets():
    cache = PlainBelady(1)
    cache.expect([1])
    cache.expect([1])
    cache.forget_expected()
    replay(cache, [1])
    assert cache.when(1) > 10**9


def test_static_keeps_what_was_named():
    assert replay(PlainStatic(2, [7, 7, 9, 3]), [7, 3, 9, 7, 9, 3]) == [7, 9]


@pytest.mark.parametrize("cache", [PlainSieve(0), PlainBelady(0), PlainStatic(0, [1])])
def test_no_room_no_hits(cache):
    assert replay(cache, [1, 1, 1]) == []


def test_what_is_evicted_in_the_same_batch_gets_no_slot():
    assert PlainSieve(1).admit([1, 2, 3]) == [-1, -1, 0]


def test_a_policy_says_who_gives_way():
    with pytest.raises(NotImplementedError):
        PlainCache(1).admit([1])
