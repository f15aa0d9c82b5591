from __future__ import annotations

import gc

import torch
from hypothesis import given
from hypothesis import strategies as st

from shorthaul.offload.policy.backward_order import (
    REMEMBERED_PASSES,
    SMALLEST_LONG_PASS,
    BackwardOrder,
)
from shorthaul.offload.saved.record import Record, State
from tests.offload.records import make_record as make_plain_record


def make_record(order: BackwardOrder, size: int = 8) -> Record:
    order.begin_pass_if_needed()
    tensor = torch.empty(size, dtype=torch.uint8)
    record = make_plain_record(tensor, State.STORED, position=order.current.next_position)
    order.note_packed(record)
    return record


def positions(records) -> list[int]:
    return [each.position for each in records]


def test_the_first_guess_is_the_reverse_of_packing():
    order = BackwardOrder()
    records = [make_record(order) for _ in range(4)]
    assert positions(order.note_unpacked(records[3])) == [2, 1, 0]
    assert positions(order.note_unpacked(records[2])) == [1, 0]


@given(st.permutations(range(6)))
def test_the_order_of_the_last_pass_is_the_next_guess(used):
    order = BackwardOrder()
    for _ in range(2):
        records = [make_record(order) for _ in range(6)]
        for position in used:
            list(order.note_unpacked(records[position]))
    again = [make_record(order) for _ in range(6)]
    assert positions(order.note_unpacked(again[used[0]])) == list(used[1:])


def test_other_sizes_are_another_pass():
    order = BackwardOrder()
    records = [make_record(order) for _ in range(3)]
    for record in records:  # first packed, first used
        list(order.note_unpacked(record))
    larger = [make_record(order, 16) for _ in range(3)]
    assert positions(order.note_unpacked(larger[2])) == [1, 0]


def test_records_that_are_gone_are_not_expected():
    order = BackwardOrder()
    records = [make_record(order) for _ in range(4)]
    del records[1]
    gc.collect()
    assert positions(order.note_unpacked(records[-1])) == [2, 0]


def test_after_one_pass_comes_the_oldest_that_waits():
    order = BackwardOrder()
    passes = []
    for tag in range(3):
        order.mark(tag)
        passes.append([make_record(order) for _ in range(2)])
    following = list(order.note_unpacked(passes[0][1]))
    assert following == [passes[0][0], passes[1][1], passes[1][0]]


def test_a_hint_names_the_pass_that_comes_next():
    order = BackwardOrder()
    passes = {}
    for tag in "abc":
        order.mark(tag)
        passes[tag] = [make_record(order) for _ in range(2)]
    assert order.hint("b") is not None
    following = list(order.note_unpacked(passes["a"][1]))
    assert following[1:] == [passes["b"][1], passes["b"][0]]
    assert order.hint("unknown") is None


def test_passes_that_never_go_backward_are_forgotten():
    order = BackwardOrder()
    for _ in range(5):
        kept = make_record(order)
        dropped = make_record(order)
        del dropped
        list(order.note_unpacked(kept))
        del kept
        gc.collect()
    make_record(order)
    assert len(order.waiting) <= 1


def test_what_is_remembered_is_bounded():
    order = BackwardOrder()
    for size in range(1, 3 * REMEMBERED_PASSES):
        list(order.note_unpacked(make_record(order, size)))
    assert len(order._learned) == REMEMBERED_PASSES


def test_what_is_kept_for_good_is_not_looked_at_again():
    order = BackwardOrder()
    records = [make_record(order) for _ in range(6)]
    for kept in (4, 3, 1):
        records[kept].holdings.state = State.KEPT
    assert positions(order.note_unpacked(records[5])) == [2, 1, 0]  # up to the first to be read
    assert positions(order.note_unpacked(records[2])) == [0]


def test_a_pass_that_was_dropped_is_forgotten_by_the_next_one():
    order = BackwardOrder()
    abandoned = [make_record(order) for _ in range(3)]
    del abandoned[0]
    order.forget_dropped()
    assert order.current.next_position == 3, "two of them live"
    abandoned.clear()
    gc.collect()
    order.forget_dropped()
    assert order.current.next_position == 0
    assert not order.waiting


def test_what_was_broken_off_is_learned_from_only_when_it_comes_again():
    order = BackwardOrder()

    def run(count: int, used: int) -> bool:
        records = [make_record(order) for _ in range(count)]
        for record in records[::-1][:used]:
            list(order.note_unpacked(record))
        record = None
        records.clear()
        gc.collect()
        order.begin_pass_if_needed()
        learned, order.last_over = order.last_over, None
        return learned is not None

    assert run(4, 4), "whole"
    assert not run(4, 2), "broken off"
    assert run(4, 4)
    assert not run(5, 3), "perhaps broken off"
    assert run(5, 3), "not by accident"
    assert run(5, 3)
    assert not run(5, 4)


def test_what_was_dropped_is_cut_out_of_a_pass_that_never_ends():
    order = BackwardOrder()
    mask = make_record(order)  # part of every pass
    last = [make_record(order) for _ in range(3)]
    for _ in range(SMALLEST_LONG_PASS):
        last = [make_record(order) for _ in range(3)]
        order.forget_dropped()
        assert order.current.next_position <= SMALLEST_LONG_PASS + 3
    assert mask.position == 0
    assert positions(order.note_unpacked(last[2]))[:2] == [last[1].position, last[0].position]
    assert order.current._records[last[1].position]() is last[1]
    for record in (*last[:2], mask):
        list(order.note_unpacked(record))
    del last, record
    order.begin_pass_if_needed()
    assert order.last_over is None, "its places are those of the end of a long pass"
