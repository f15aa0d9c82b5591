"""Buffers: nothing is owned twice, nothing is lost, the budget holds."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import shorthaul as sh
from shorthaul.errors import BufferBudgetError, WaitTimeoutError
from shorthaul.storage import Buffer, BufferPool, page_moves
from shorthaul.storage.buffer_pool import HUGE_PAGE_BYTES, PAGE_BYTES, choose_class_bytes
from shorthaul.storage.testing.contract import PATIENCE_SECONDS, in_child

MEBIBYTE = 2**20


@pytest.mark.parametrize("length", [0, 1, 4096, 4097, 40_961, 10**6, 2**21, 2**21 + 1, 10**7])
def test_a_buffer_is_aligned_and_as_long_as_asked(length: int) -> None:
    with BufferPool("256MiB") as pool:
        buffer = pool.take(length)
        assert buffer.length_bytes == buffer.memory.nbytes == length
        assert buffer.capacity_bytes >= max(1, length)
        assert buffer.address % PAGE_BYTES == 0
        if length >= HUGE_PAGE_BYTES:
            assert buffer.address % HUGE_PAGE_BYTES == 0
        buffer.memory[:] = 7
        assert (buffer.memory == 7).all()


def test_classes_are_whole_pages_and_waste_little() -> None:
    for length in (*range(1, 70_000, 97), *(2**power + 1 for power in range(16, 32))):
        size = choose_class_bytes(length)
        assert size % PAGE_BYTES == 0
        assert length <= size < max(length * 1.25, length + PAGE_BYTES)
        assert choose_class_bytes(size) == size
        if size > 8 * MEBIBYTE:
            assert size % HUGE_PAGE_BYTES == 0


def test_memory_is_reused() -> None:
    with BufferPool("16MiB") as pool:
        first = pool.take(100_000)
        address = first.address
        first.release()
        assert pool.take(99_000).address == address


@pytest.mark.parametrize(
    "keep",
    [
        lambda b: b.memory,
        lambda b: b.memory[10:20],
        lambda b: b.tensor(torch.int16, (3, 2), offset_bytes=2)[1:],
        lambda b: torch.from_numpy(b.memory),
    ],
    ids=["array", "slice", "tensor", "from_numpy"],
)
def test_what_was_made_from_a_buffer_keeps_it(keep: Callable[[Buffer], object]) -> None:
    with BufferPool(4096) as pool:
        buffer = pool.take(4096)
        view = keep(buffer)
        buffer.release()
        del buffer
        assert pool.in_use_bytes == 4096
        with pytest.raises(WaitTimeoutError, match=r"a buffer of 100 B from a pool of 4.0 KiB"):
            pool.take(100, block=False)
        del view
        assert pool.in_use_bytes == 0
        pool.take(100, block=False)


def test_a_tensor_that_autograd_holds_keeps_its_buffer() -> None:
    with BufferPool("1MiB") as pool:
        buffer = pool.take(4096)
        weights = buffer.tensor(torch.float32, (1024,)).fill_(3.0)
        x = torch.ones(1024, requires_grad=True)
        total = (x * weights).sum()
        del weights
        buffer.release()
        assert pool.in_use_bytes == 4096
        total.backward()
        assert x.grad is not None
        assert (x.grad == 3).all()
        del total, buffer
        assert pool.in_use_bytes == 0


def test_tensors_share_the_memory() -> None:
    with BufferPool("1MiB") as pool, pool.take(64) as buffer:
        numbers = buffer.tensor(torch.float32, (2, 3), offset_bytes=8)
        numbers.copy_(torch.arange(6.0).view(2, 3))
        assert buffer.memory[8:32].view(np.float32).tolist() == [0, 1, 2, 3, 4, 5]
        assert buffer.tensor(torch.float32, (0, 5)).shape == (0, 5)
        assert buffer.tensor(torch.int64, ()).shape == ()


@pytest.mark.parametrize(("shape", "offset"), [((17,), 0), ((16,), 4), ((1,), -4), ((4, 5), 0)])
def test_refuses_a_tensor_that_does_not_fit(shape: tuple[int, ...], offset: int) -> None:
    with (
        BufferPool("1MiB") as pool,
        pool.take(64) as buffer,
        pytest.raises(ValueError, match="but the buffer has 64"),
    ):
        buffer.tensor(torch.float32, shape, offset_bytes=offset)


def test_a_released_buffer_has_no_memory() -> None:
    with BufferPool("1MiB") as pool:
        buffer = pool.take(64)
        buffer.release()
        buffer.release()
        with pytest.raises(ValueError, match="has been released"):
            _ = buffer.memory
        assert "released" in repr(buffer)


def test_a_forgotten_buffer_comes_back() -> None:
    with BufferPool(4096) as pool:
        for _ in range(10):
            pool.take(4096, block=False)


def test_taking_waits_for_room() -> None:
    with BufferPool(8192) as pool:
        held = [pool.take(4096), pool.take(4096)]
        taken: list[Buffer] = []
        thread = threading.Thread(target=lambda: taken.append(pool.take(8192)))
        thread.start()
        held.pop().release()
        thread.join(0.05)
        assert thread.is_alive(), "half of the room is not enough"
        held.pop().release()
        thread.join(PATIENCE_SECONDS)
        assert len(taken) == 1


def test_a_wait_ends_when_its_time_is_up() -> None:
    with BufferPool(4096) as pool:
        held = pool.take(4096)
        with pytest.raises(WaitTimeoutError, match=r"not done after 0.01 s"):
            pool.take(1, timeout_seconds=0.01)
        held.release()
        pool.take(1, timeout_seconds=0.01)


def test_what_never_fits_is_refused_at_once() -> None:
    with BufferPool("1MiB") as pool, pytest.raises(BufferBudgetError, match="can never fit"):
        pool.take(MEBIBYTE + 1)


def test_a_buffer_as_large_as_the_budget_fits() -> None:
    with BufferPool(9 * PAGE_BYTES) as pool:  # the class for 9 pages has 10
        assert pool.take(9 * PAGE_BYTES).capacity_bytes == 9 * PAGE_BYTES


def test_kept_buffers_make_room_for_another_size() -> None:
    with BufferPool(MEBIBYTE) as pool:
        small = [pool.take(4096) for _ in range(200)]
        assert pool.mapped_bytes == 200 * 4096
        for each in small:
            each.release()
        assert pool.take(MEBIBYTE).length_bytes == MEBIBYTE
        assert pool.mapped_bytes <= MEBIBYTE


def test_pages_of_free_buffers_move_to_another_size() -> None:
    with BufferPool(8 * MEBIBYTE) as pool:
        large = pool.take(8 * MEBIBYTE)
        large.memory[:] = 7
        large.release()
        del large
        small = pool.take(2 * MEBIBYTE)
        assert pool.mapped_bytes == 8 * MEBIBYTE
        assert (small.memory == 7).all(), "these are the pages of the large buffer"
        rest = [pool.take(2 * MEBIBYTE, block=False) for _ in range(3)]
        assert all((each.memory == 7).all() for each in rest)
        addresses = {each.address for each in (small, *rest)}
        assert len(addresses) == 4
        for number, each in enumerate((small, *rest)):
            each.memory[:] = number
        assert [int(each.memory[-1]) for each in (small, *rest)] == [0, 1, 2, 3]
        del small, rest, each
        whole = pool.take(8 * MEBIBYTE, block=False)
        assert sorted(set(whole.memory[::MEBIBYTE].tolist())) == [0, 1, 2, 3]


def test_pages_move_only_when_room_is_needed() -> None:
    with BufferPool(64 * MEBIBYTE) as pool:
        large = pool.take(8 * MEBIBYTE)
        large.release()
        del large
        small = pool.take(4 * MEBIBYTE)
        assert pool.mapped_bytes == 12 * MEBIBYTE
        other = pool.take(6 * MEBIBYTE, mapped_bytes=14 * MEBIBYTE)
        assert pool.mapped_bytes == 14 * MEBIBYTE
        del small, other
        assert pool.take(4 * MEBIBYTE).length_bytes == 4 * MEBIBYTE


def test_where_pages_cannot_move_they_are_unmapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_moves, "_find_mremap", lambda: None)
    with BufferPool(8 * MEBIBYTE) as pool:
        pool.take(8 * MEBIBYTE).release()
        assert pool.take(2 * MEBIBYTE).length_bytes == 2 * MEBIBYTE
        assert pool.mapped_bytes == 2 * MEBIBYTE


def test_trimming_unmaps_what_is_free_and_longest_unused_first() -> None:
    with BufferPool("1MiB") as pool:
        lent, small, large = pool.take(8192), pool.take(4096), pool.take(65536)
        small.release()
        del small
        large.release()
        del large
        pool.trim(8192 + 65536)
        assert pool.mapped_bytes == 8192 + 65536
        pool.trim(0)
        assert pool.mapped_bytes == pool.in_use_bytes == 8192
        lent.release()


def test_a_closed_pool_gives_nothing_and_takes_back() -> None:
    pool = BufferPool("1MiB")
    buffer = pool.take(4096)
    view = buffer.memory
    pool.close()
    pool.close()
    with pytest.raises(ValueError, match="pool is closed"):
        pool.take(4096)
    view[:] = 1  # still the owner's
    buffer.release()
    del view, buffer
    assert pool.in_use_bytes == 0
    assert "0 B of 1.0 MiB in use" in repr(pool)


def test_closing_wakes_those_who_wait() -> None:
    pool = BufferPool(4096)
    held = pool.take(4096)
    refused: list[Exception] = []

    def take() -> None:
        try:
            pool.take(4096)
        except ValueError as error:
            refused.append(error)

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    pool.close()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert len(refused) == 3
    held.release()


def test_the_meter_knows_what_is_mapped() -> None:
    with sh.meter() as meter:
        with BufferPool("1MiB", why="staging") as pool:
            first, second = pool.take(4096), pool.take(8192)
            assert meter.kept_bytes["staging"] == 12_288
            first.release()
            assert meter.kept_bytes["staging"] == 12_288, "kept for reuse is kept"
            second.release()
        assert "staging" not in meter.kept_bytes
    assert meter.peak_kept_bytes >= 12_288


def test_a_pool_that_was_forgotten_keeps_nothing() -> None:
    with sh.meter() as meter:
        pool = BufferPool("1MiB", why="forgotten")
        pool.take(4096).release()
        assert meter.kept_bytes["forgotten"] == 4096
        del pool
        gc.collect()
        assert "forgotten" not in meter.kept_bytes


def test_waiting_for_room_is_a_stall() -> None:
    with BufferPool(4096, why="staging") as pool, sh.meter() as meter:
        held = pool.take(4096)
        timer = threading.Timer(0.05, held.release)
        timer.start()
        pool.take(4096, timeout_seconds=PATIENCE_SECONDS)
        timer.join()
    assert meter.stall_seconds["staging"] > 0


def test_a_pool_works_in_a_forked_child() -> None:
    with BufferPool(8192) as pool:
        held = pool.take(4096)
        pool._turn.acquire()  # as if another thread were taking at the time of the fork
        try:

            def work() -> None:
                assert pool.take(4096, timeout_seconds=1).length_bytes == 4096
                held.memory[:] = 1

            in_child(work)
        finally:
            pool._turn.release()


def test_threads_never_share_a_buffer() -> None:
    wrong: list[int] = []
    with BufferPool(20 * 4096) as pool:

        def work(mark: int) -> None:
            random = np.random.default_rng(mark)
            for _ in range(200):
                buffer = pool.take(int(random.integers(1, 5 * 4096)))
                buffer.memory[:] = mark
                view = buffer.tensor(torch.uint8, (buffer.length_bytes,))
                buffer.release()
                if not bool((view == mark).all()):
                    wrong.append(mark)
                del view, buffer  # holding on while taking another could wait forever

        threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert pool.in_use_bytes == 0
        assert pool.mapped_bytes <= pool.budget_bytes


class PoolMachine(RuleBasedStateMachine):
    """Any order of taking, viewing, releasing and forgetting."""

    budget_bytes = 64 * PAGE_BYTES

    def __init__(self) -> None:
        super().__init__()
        self.pool = BufferPool(self.budget_bytes)
        self.owners: list[tuple[int, list[Buffer | torch.Tensor]]] = []  # a mark, and its holders
        self.mark = 0

    @rule(length=st.integers(0, 40 * PAGE_BYTES))
    def take(self, length: int) -> None:
        needed = choose_class_bytes(length)
        fits = self.lent_bytes() + needed <= self.budget_bytes
        if not fits:
            with pytest.raises(WaitTimeoutError):
                self.pool.take(length, block=False)
            return
        buffer = self.pool.take(length, block=False)
        self.mark = self.mark % 255 + 1
        buffer.memory[:] = self.mark
        self.owners.append((self.mark, [buffer]))

    @precondition(lambda self: self.owners)
    @rule(which=st.integers(0, 1000))
    def view(self, which: int) -> None:
        _, holders = self.owners[which % len(self.owners)]
        first = holders[0]
        if isinstance(first, Buffer) and first.length_bytes:
            holders.append(first.tensor(torch.uint8, (first.length_bytes,)))

    @precondition(lambda self: self.owners)
    @rule(which=st.integers(0, 1000), is_explicit=st.booleans())
    def let_go(self, which: int, is_explicit: bool) -> None:
        index = which % len(self.owners)
        _, holders = self.owners[index]
        gone = holders.pop(0)
        if isinstance(gone, Buffer) and is_explicit:
            gone.release()
        del gone
        if not holders:
            del self.owners[index]

    def lent_bytes(self) -> int:
        return sum(
            holders[0].capacity_bytes
            if isinstance(holders[0], Buffer)
            else choose_class_bytes(holders[0].numel())
            for _, holders in self.owners
        )

    @invariant()
    def nothing_is_owned_twice(self) -> None:
        for mark, holders in self.owners:
            for holder in holders:
                memory = holder.memory if isinstance(holder, Buffer) else holder
                for place in range(0, len(memory), PAGE_BYTES):
                    assert memory[place] == mark

    @invariant()
    def the_budget_holds(self) -> None:
        assert self.pool.in_use_bytes == self.lent_bytes()
        assert self.pool.in_use_bytes <= self.pool.mapped_bytes <= self.budget_bytes

    def teardown(self) -> None:
        self.owners.clear()
        assert self.pool.in_use_bytes == 0
        whole = self.pool.take(self.budget_bytes, block=False)
        assert whole.length_bytes == self.budget_bytes
        whole.release()
        self.pool.close()
        assert self.pool.mapped_bytes == 0


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = hypothesis_settings(
    max_examples=40, stateful_step_count=25, deadline=None
)
