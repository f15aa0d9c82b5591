"""A fork while records are on disk, on their way there, and on their way back."""

from __future__ import annotations

import functools
import gc
import os
import threading
from collections.abc import Callable

import pytest
import torch

from shorthaul.storage.testing.contract import paused
from tests.forked_children import in_child
from tests.offload.keep_all import require_equal, settled_report, small_offload

WIDTH, ROWS = 64, 256

pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.fixture(params=["uring", "thread"])
def engine(request):
    return request.param


@pytest.fixture
def _one_thread():
    # A forked child cannot use the threads that OpenMP started in its parent.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def weights() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(WIDTH, WIDTH, generator=generator).div(4).requires_grad_() for _ in range(6)
    )


def loss_of(seed: int) -> torch.Tensor:
    h = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed))
    for weight in weights():
        h = (h @ weight).tanh()
    return h.square().mean()


@functools.cache
def expected(seed: int) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(loss_of(seed), weights())


def finish(seed: int, loss: torch.Tensor, *, is_kept: bool = False) -> None:
    got = torch.autograd.grad(loss, weights(), retain_graph=is_kept)
    require_equal(expected(seed), got)


def step(offload, seed: int) -> None:
    with offload:
        loss = loss_of(seed)
    finish(seed, loss)


def begin(offload, seed: int) -> torch.Tensor:
    expected(seed)
    with offload:
        return loss_of(seed)


def require_nothing_left(offload) -> None:
    report = settled_report(offload)
    assert (report.live_bytes, report.disk_bytes) == (0, 0)
    assert offload.store.writes.in_flight_bytes == 0
    assert offload.store.reads.loading_bytes == 0


def both_sides(parent: Callable[[], None], child: Callable[[], None]) -> None:
    """Run `parent` here before `child` ends its work in a fork of this process."""
    reading, writing = os.pipe()

    def work() -> None:
        os.close(writing)
        os.read(reading, 1)  # the parent writes first: into whatever the two share
        child()

    def go_on() -> None:
        os.close(reading)
        try:
            parent()
        finally:
            os.close(writing)

    in_child(work, meanwhile=go_on)


@pytest.mark.parametrize("is_child_first", [True, False])
def test_both_sides_of_a_fork_finish_a_graph_and_go_on(tmp_path, engine, is_child_first):
    offload = small_offload(tmp_path, engine=engine, checksum=False)
    losses = {seed: begin(offload, seed) for seed in (1, 2)}
    offload.store.wait_until_idle()

    def work(first: int) -> None:
        for seed in range(first, first + 3):
            step(offload, seed)
        waiting = begin(offload, first)
        for seed in (1, 2):
            finish(seed, losses.pop(seed))
        for seed in range(first, first + 3):
            step(offload, seed)
        finish(first, waiting)
        del waiting
        require_nothing_left(offload)

    if is_child_first:
        in_child(lambda: work(20))
        work(10)
    else:
        both_sides(lambda: work(10), lambda: work(20))
    offload.close()


def test_a_fork_while_everything_is_on_its_way_to_the_disk(tmp_path, engine):
    offload = small_offload(tmp_path, engine=engine)
    with paused(offload.store.writes.engine):
        losses = {seed: begin(offload, seed) for seed in (1, 2)}
        dropped = begin(offload, 3)
        assert offload.store.writes.in_flight_bytes > 0

        def work() -> None:
            nonlocal dropped
            dropped = None
            step(offload, 4)
            for seed in (1, 2):
                finish(seed, losses.pop(seed))
            require_nothing_left(offload)

        in_child(work)
    work()
    offload.close()


def test_a_fork_while_records_are_read_ahead(tmp_path, engine):
    offload = small_offload(tmp_path, engine=engine, prefetch="64KiB")
    step(offload, 1)  # the order is learned
    loss = begin(offload, 2)
    offload.store.wait_until_idle()
    with paused(offload.store.reads.engine):
        offload.store.prefetch(
            [each() for each in offload.store._farewells.values() if each() is not None]
        )
        assert offload.store.reads.loading_bytes > 0

        def work() -> None:
            nonlocal loss
            finish(2, loss)
            loss = None
            step(offload, 3)
            require_nothing_left(offload)

        in_child(work)
    work()
    offload.close()


def test_a_fork_while_another_thread_is_inside_the_store(tmp_path):
    offload = small_offload(tmp_path)
    loss = begin(offload, 1)
    inside, over = threading.Event(), threading.Event()

    def stay() -> None:
        with offload.store.lock:
            inside.set()
            over.wait(0.3)

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    in_child(lambda: finish(1, loss))
    over.set()
    thread.join()
    finish(1, loss)
    loss = None
    require_nothing_left(offload)
    offload.close()


def test_a_child_of_a_child_has_a_file_of_its_own_too(tmp_path):
    offload = small_offload(tmp_path, checksum=False)
    loss = begin(offload, 1)

    def grandchild() -> None:
        step(offload, 30)
        finish(1, loss)

    def child() -> None:
        waiting = begin(offload, 20)
        both_sides(lambda: step(offload, 21), grandchild)
        finish(20, waiting)
        finish(1, loss)

    both_sides(lambda: step(offload, 10), child)
    finish(1, loss)
    loss = None
    require_nothing_left(offload)
    offload.close()


def test_nothing_pending_keeps_the_file_of_the_parent(tmp_path):
    offload = small_offload(tmp_path)
    step(offload, 1)
    require_nothing_left(offload)
    (spool,) = offload.store.spools.spools
    file, reserved_bytes = spool.file, spool.reserved_bytes

    def work() -> None:
        step(offload, 2)
        assert spool.file is not file
        assert file.is_closed
        assert spool.reserved_bytes == reserved_bytes

    both_sides(lambda: step(offload, 3), work)
    assert spool.file is file
    assert not file.is_closed
    offload.close()


def test_a_frozen_file_is_closed_with_its_last_slot(tmp_path):
    offload = small_offload(tmp_path)
    loss = begin(offload, 1)
    offload.store.wait_until_idle()
    (spool,) = offload.store.spools.spools
    file = spool.file
    in_child(lambda: finish(1, loss))
    later = begin(offload, 2)
    assert not file.is_closed
    assert spool.file is not file
    finish(1, loss)
    loss = None
    gc.collect()
    offload.store.wait_until_idle()
    assert file.is_closed
    finish(2, later)
    del later
    require_nothing_left(offload)
    offload.close()


def test_a_closed_context_and_a_removed_directory_do_not_disturb_a_fork(tmp_path):
    (tmp_path / "scratch").mkdir()
    offload = small_offload(tmp_path / "scratch")
    closed = small_offload(tmp_path)
    closed.close()
    loss = begin(offload, 1)
    offload.store.wait_until_idle()
    (tmp_path / "scratch").rmdir()

    def work() -> None:
        step(offload, 2)
        assert "ENOENT" in (offload.report().refusal or "")
        finish(1, loss)

    both_sides(work, work)
    offload.close()
