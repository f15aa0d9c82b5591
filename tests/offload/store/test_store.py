"""Faults: nothing is lost, nothing is wrong, and what cannot be helped has a name."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import shorthaul as sh
from shorthaul.errors import (
    ActivationLostError,
    OffloadBudgetError,
    SpoolFullError,
    StorageError,
)
from shorthaul.offload.drive.spool import RESERVE_BYTES, Spool
from shorthaul.offload.store.store import LONGEST_READ_AHEAD
from shorthaul.storage import Fault, ThreadEngine, faulty_engine, throttled_engine
from tests.offload.keep_all import (
    gradients_of,
    require_bit_equal,
    require_equal,
    settled_report,
    small_offload,
)

WIDTH = 64


def deep(x: torch.Tensor, layers: int = 12) -> torch.Tensor:
    h = x * 2
    for _ in range(layers):
        h = (h @ h / 8).tanh()
    return h.sum()


@pytest.fixture
def x() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(WIDTH, WIDTH, generator=generator).requires_grad_()


def faulty(*faults: Fault):
    return lambda: faulty_engine(ThreadEngine(depth=4), faults)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failing_write_keeps_the_tensor(code, x, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "shorthaul"):
        report = require_bit_equal(
            tmp_path,
            [x],
            lambda: deep(x),
            engine=faulty(Fault("errno", 3, "write", onwards=True, code=code)),
        )
    assert report.counts.refused_stores > 0
    assert report.refusal is not None
    assert os.strerror(code) in report.refusal
    said = [each for each in caplog.records if "stay in memory from now on" in each.message]
    assert len(said) == 1


def test_one_failed_write_does_not_give_up_the_disk(x, tmp_path):
    offload = small_offload(tmp_path, engine=faulty(Fault("errno", 2, "write", code=errno.EIO)))

    def step() -> torch.Tensor:
        loss = deep(x)
        offload.store.wait_until_idle()  # what is still on its way is not read back
        return loss

    expected = gradients_of([x], lambda: deep(x))
    with offload:
        require_equal(expected, gradients_of([x], step))
    report = settled_report(offload)
    assert report.refusal is None
    assert report.counts.refused_stores == 1
    assert report.counts.read_bytes > 0


def test_on_full_raise_raises_at_once(x, tmp_path):
    fault = Fault("errno", 1, "write", code=errno.ENOSPC)
    offload = small_offload(tmp_path, engine=faulty(fault), on_full="raise")

    def forward() -> None:
        deep(x)
        offload.store.wait_until_idle()

    with offload, pytest.raises(StorageError, match="ENOSPC"):
        forward()


def test_a_full_disk_within_a_budget_is_an_error_before_memory_runs_out(x, tmp_path):
    fault = Fault("errno", 2, "write", onwards=True, code=errno.ENOSPC)
    offload = small_offload(tmp_path, engine=faulty(fault), budget="128KiB")
    with offload, pytest.raises(OffloadBudgetError):
        deep(x, 40)
    assert offload.store.live_bytes <= 128 * 1024


@pytest.mark.parametrize("memory", [0, "96KiB"])
@pytest.mark.parametrize("spread", ["turns", "stripes"])
def test_what_was_kept_leaves_when_the_room_is_needed(memory, spread, x, tmp_path):
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir()
    knobs = {"compress": "mask", "memory": memory} if memory else {"policy": lambda _: False}

    def step() -> torch.Tensor:
        h = x
        for index in range(40):  # these masks, packed, fill the budget
            h = h * (x > index / 20 - 1)
        return deep(h, 12)

    report = require_bit_equal(
        places,
        [x],
        step,
        least=0,
        budget="128KiB",
        spread=spread,
        **knobs,
    )
    assert report.counts.peak_live_bytes <= 128 * 1024
    assert report.counts.kept_and_written > 0
    assert report.counts.read_bytes > 0


def test_what_an_operator_is_still_filling_does_not_leave(x, tmp_path):
    def step() -> torch.Tensor:
        h = x * 2
        for _ in range(12):
            h = torch.nn.functional.rrelu(h, training=True)
        return h.square().sum()

    report = require_bit_equal(tmp_path, [x], step, least=0, budget="80KiB", policy=lambda _: False)
    assert report.counts.kept_and_written > 0


@pytest.mark.parametrize(
    ("fault", "fails"),
    [
        (Fault("errno", 2, "write", code=errno.EIO), False),
        (Fault("errno", 2, "write", onwards=True, code=errno.EIO), True),
        (Fault("errno", 1, "write", code=errno.ENOSPC), True),
    ],
    ids=["once", "for good", "full"],
)
def test_what_cannot_leave_stays_and_says_why(fault, fails, x, tmp_path):
    expected = gradients_of([x], lambda: deep(x, 12))
    offload = small_offload(tmp_path, engine=faulty(fault), budget="128KiB", policy=lambda _: False)
    with offload:
        if fails:
            with pytest.raises(OffloadBudgetError, match="the disk takes no more") as caught:
                deep(x, 12)
            assert os.strerror(fault.code) in str(caught.value)
            del caught
        else:
            require_equal(expected, gradients_of([x], lambda: deep(x, 12)))
    assert settled_report(offload).live_bytes == 0


def test_a_daily_limit_that_is_used_up_is_named_where_the_budget_runs_out(x, tmp_path, caplog):
    offload = small_offload(tmp_path, budget="128KiB", endurance={"daily": "32KiB"})
    with offload, pytest.raises(OffloadBudgetError, match="today's writes are used up"):
        deep(x, 40)
    unlimited = small_offload(tmp_path, endurance={"daily": "32KiB"})
    with unlimited:
        deep(x, 40).backward()
    assert "until midnight UTC" in caplog.text
    assert unlimited.report().refusal == "today's writes are used up"


def test_a_nearly_full_disk_is_measured_by_what_it_has_and_kept_to(x, tmp_path, monkeypatch):
    step = lambda: deep(x)  # noqa: E731
    expected = gradients_of([x], step)
    for free_bytes in (RESERVE_BYTES + 3 * 2**20, RESERVE_BYTES // 2):
        monkeypatch.setattr(Spool, "_free_bytes", lambda _, free_bytes=free_bytes: free_bytes)
        offload = small_offload(tmp_path, budget="64MiB")
        for _ in range(2):
            with offload:
                require_equal(expected, gradients_of([x], step))
        assert (offload.policy.plan is None) == (free_bytes < RESERVE_BYTES)
    raising = small_offload(tmp_path, budget="64MiB", on_full="raise")
    with raising, pytest.raises(SpoolFullError, match="are left for others"):
        deep(x)


def test_a_disk_that_fails_while_it_is_measured_is_not_asked_for_a_plan(x, tmp_path):
    fault = Fault("errno", 1, "write", onwards=True, code=errno.EIO)
    offload = small_offload(tmp_path, budget="8MiB", engine=faulty(fault))
    with offload:
        deep(x).backward()
    assert offload.policy.plan is None
    raising = small_offload(tmp_path, budget="8MiB", engine=faulty(fault), on_full="raise")
    with pytest.raises(StorageError), raising:
        deep(x)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault("errno", 2, "read", code=errno.EIO), "EIO"),
        (Fault("short", 2, "read", moved_bytes=100), "ends early"),
        (Fault("flip", 2, "read", bit=1234), "checksum"),
        (Fault("flip", 2, "write", bit=1234), "checksum"),
    ],
    ids=["errno", "short", "bit flipped on reading", "bit flipped on writing"],
)
def test_a_bad_load_is_a_named_error_and_never_zeros(fault, reason, x, tmp_path):
    offload = small_offload(tmp_path, engine=faulty(fault), prefetch=1, in_flight=1)
    with offload:
        loss = deep(x)
        offload.store.wait_until_idle()
    with pytest.raises(ActivationLostError) as caught:
        loss.backward()
    text = str(caught.value)
    assert reason in text
    assert "float32 (64, 64)" in text
    assert "from byte" in text
    assert "retry_step" in text


def test_without_checksums_only_the_verification_is_left_out(x, tmp_path):
    report = require_bit_equal(tmp_path, [x], lambda: deep(x), checksum=False)
    assert report.counts.read_bytes > 0


def test_a_step_that_lost_an_activation_can_be_run_again(x, tmp_path):
    expected = gradients_of([x], lambda: deep(torch.dropout(x, 0.5, True)))
    fault = Fault("errno", 3, "read", code=errno.EIO)
    offload = small_offload(tmp_path, engine=faulty(fault), prefetch=1, in_flight=1)
    x.grad = None
    torch.manual_seed(0)
    tries = []

    def step() -> None:
        tries.append(torch.get_rng_state())
        with offload:
            loss = deep(torch.dropout(x, 0.5, True))
            offload.store.wait_until_idle()
            loss.backward()

    sh.offload.retry_step(step, [x])
    require_equal(expected, [x.grad])
    assert len(tries) == 2
    assert torch.equal(*tries)


def test_what_is_used_while_it_is_written_comes_from_memory(x, tmp_path):
    engine = lambda: throttled_engine(ThreadEngine(depth=2), 5e5)  # noqa: E731
    report = require_bit_equal(tmp_path, [x], lambda: deep(x, 20), engine=engine)
    assert report.counts.forwarded > 0
    assert report.counts.cancelled_stores > 0


def test_a_slow_disk_holds_the_model_back_instead_of_filling_memory(x, tmp_path):
    piece = WIDTH * WIDTH * 4
    report = require_bit_equal(
        tmp_path,
        [x],
        lambda: deep(x, 20),
        engine=lambda: throttled_engine(ThreadEngine(depth=2), 20e6),
        in_flight=3 * piece,
        prefetch=2 * piece,
    )
    # Three in flight, two read ahead, and what the operator at hand uses.
    assert report.counts.peak_live_bytes <= 8 * piece


def test_two_directories_in_turns_and_in_stripes(x, tmp_path):
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir()
    for spread in ("turns", "stripes"):
        offload = small_offload(places, spread=spread)
        with offload:
            loss = deep(x)
            offload.store.wait_until_idle()
            used = [each.used_bytes for each in offload.store.spools.spools]
            loss.backward()
        assert min(used) > 0
        assert abs(used[0] - used[1]) <= WIDTH * WIDTH * 4
    require_bit_equal(places, [x], lambda: deep(x), spread="stripes")


def test_the_file_size_limit_is_a_full_disk(tmp_path):
    """RLIMIT_FSIZE, in a process of its own."""
    script = f"""
import signal, torch, shorthaul as sh
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
x = torch.randn(256, 256, requires_grad=True)
with sh.settings.override(state_directory={str(tmp_path)!r}):
    with sh.offload_activations({str(tmp_path)!r}, minimum_bytes=1024) as offload:
        h = x * 2
        for _ in range(20):
            h = (h @ h / 16).tanh()
        h.sum().backward()
    kept = x.grad.clone()
    report = offload.report()
x.grad = None
h = x * 2
for _ in range(20):
    h = (h @ h / 16).tanh()
h.sum().backward()
assert torch.equal(kept, x.grad)
assert report.counts.refused_stores > 0, report
print(report.refusal)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "activations need" in done.stdout or "EFBIG" in done.stdout


def test_a_killed_process_leaves_nothing_behind(tmp_path):
    script = f"""
import os, signal, torch, shorthaul as sh
x = torch.randn(256, 256, requires_grad=True)
with sh.offload_activations({str(tmp_path)!r}, minimum_bytes=1024) as offload:
    loss = (x * 2).sin().sum()
    offload.store.wait_until_idle()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=100, check=False)
    assert done.returncode == -9
    assert list(tmp_path.iterdir()) == []


def test_the_meter_sees_what_is_moved_and_kept(x, tmp_path):
    offload = small_offload(tmp_path, policy=lambda saved: saved.position % 2 == 0)
    with sh.meter() as meter, offload:
        loss = deep(x)
        offload.store.wait_until_idle()
        loss.backward()
    counts = offload.report().counts
    assert meter.written_bytes == counts.written_bytes
    assert meter.read_bytes == counts.read_bytes
    assert counts.kept > 0
    assert meter.peak_kept_bytes >= counts.peak_live_bytes


def test_no_thread_is_woken_for_a_ticket_and_none_is_forgotten(x, tmp_path):
    offload = small_offload(tmp_path)
    with offload:
        loss = deep(x)
        offload.store.wait_until_idle()  # else the backward pass may want all of it before it is written
        loss.backward()
    offload.store.wait_until_idle()
    assert offload.report().counts.written_bytes > 0
    for lane in (offload.store.reads, offload.store.writes):
        assert lane.engine.is_polled
        assert not getattr(lane.engine, "_tickets", None)  # the ring's: it keeps those not settled
    offload.close()


def test_a_closed_context_says_so(x, tmp_path):
    offload = small_offload(tmp_path)
    with offload:
        loss = deep(x)
        offload.store.wait_until_idle()
    offload.close()
    with pytest.raises((ValueError, RuntimeError), match="closed"):
        loss.backward()


def test_scratch_files_are_closed_with_the_context(x, tmp_path):
    for _ in range(3):
        offload = small_offload(tmp_path)
        with offload:
            deep(x).backward()
        offload.close()
    links = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.exists()]
    assert not [each for each in links if str(each).startswith(str(tmp_path))]


def test_many_small_records_are_not_all_read_ahead(x, tmp_path):
    offload = small_offload(tmp_path)
    with offload:
        offload.micro_batch("only")
        loss = deep(x, layers=LONGEST_READ_AHEAD)
    offload.store.wait_until_idle()
    offload.next_backward("only")
    assert offload.report().counts.prefetched == LONGEST_READ_AHEAD
    loss.backward()
    assert offload.report().counts.prefetched > LONGEST_READ_AHEAD


def test_reads_ahead_for_a_dropped_graph_are_no_longer_counted(x, tmp_path):
    offload = small_offload(tmp_path)
    store = offload.store
    with offload:
        offload.micro_batch(0)
        loss = deep(x)
    store.wait_until_idle()
    offload.next_backward(0)
    assert store.reads.loading_bytes == sum(each.size_bytes for each in store.reads.loading) > 0
    del loss
    store.settle()
    assert store.reads.loading_bytes == 0
    assert not store.reads.loading


def test_what_several_nodes_use_is_read_once(x, tmp_path):
    def step() -> torch.Tensor:
        shared = (x * 2).tanh()  # used by its own backward and by each product below
        h = x * 3
        for _ in range(6):
            h = (h @ shared / 8).tanh()
        return h.sum()

    expected = gradients_of([x], step)
    x.grad = None
    offload = small_offload(tmp_path, in_flight=1)
    with offload:
        loss = step()
    offload.store.wait_until_idle()
    loss.backward()
    require_equal(expected, [x.grad])
    counts = offload.report().counts
    assert counts.deduplicated >= 6
    assert counts.read_bytes == counts.written_bytes


def test_a_budget_without_room_for_holding_reads_again(x, tmp_path):
    piece = WIDTH * WIDTH * 4

    def step() -> torch.Tensor:
        shared = (x * 2).tanh()
        h = x * 3
        for _ in range(6):
            h = (h @ shared / 8).tanh()
        return h.sum()

    report = require_bit_equal(
        tmp_path, [x], step, budget=5 * piece, prefetch=piece, in_flight=piece, policy="all"
    )
    assert report.counts.peak_live_bytes <= 5 * piece


def test_free_buffers_and_kept_tensors_together_stay_within_the_budget(x, tmp_path):
    piece = WIDTH * WIDTH * 4
    offload = small_offload(
        tmp_path, budget=10 * piece, policy=lambda saved: saved.position < 10, in_flight=4 * piece
    )
    for _ in range(3):
        with offload:
            deep(x, 10).backward()
    counts = offload.report().counts
    assert counts.peak_live_bytes <= counts.peak_mapped_bytes <= 10 * piece


def test_a_later_step_clears_no_new_pages(tmp_path):
    x = torch.randn(1024, 1024, requires_grad=True)  # 4 MiB: two huge pages
    offload = small_offload(tmp_path, budget="40MiB", policy="all", in_flight="8MiB")

    def step() -> None:
        with offload:
            wide = torch.cat([x, x * 2]).tanh()  # two sizes, which take turns
            loss = deep(x, 3).sum() + wide.square().sum()
            offload.store.wait_until_idle()  # what is still on its way needs no buffer to come back
            loss.backward()

    step()
    mapped_bytes = offload.store.pool.mapped_bytes
    assert mapped_bytes > 0
    step()
    assert offload.store.pool.mapped_bytes == mapped_bytes <= 40 * 2**20


def test_packed_tensors_may_stay_in_memory_up_to_a_limit(x, tmp_path):
    def step() -> torch.Tensor:
        h = x * 2
        for _ in range(8):
            h = torch.dropout(h, 0.5, True)
        return h.square().sum()

    mask_bytes = 538  # of 64 x 64 values, as the codec packs them
    report = require_bit_equal(tmp_path, [x], step, compress="mask", memory=3 * mask_bytes, least=1)
    assert 3 <= report.counts.packed <= 6  # in two steps
    assert report.counts.offloaded >= 10
