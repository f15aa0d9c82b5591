"""Tensors that stand for a GPU's leave and come back through pinned buffers, bit for bit.

They are CPU tensors, behind recorded streams: what the GPU would do later is done when something
waits for it, or when the test lets it get on.
"""

from __future__ import annotations

import collections
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.errors import ActivationLostError, OffloadBudgetError
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.offload.device.copies import DeviceCopier
from shorthaul.offload.store.device_queue import DeviceLane
from shorthaul.storage import Fault, ThreadEngine, faulty_engine
from tests.offload.cases import CASES, MODULES, leaf, unbound_qkv
from tests.offload.keep_all import gradients_of, require_equal, settled_report, small_offload
from tests.offload.recorded_streams import Event, RecordedStreams, Stream


class HostStreams(RecordedStreams):
    """The computing stream is the host: what it waits for has happened when it goes on."""

    def __init__(self, *, is_fast: bool) -> None:
        super().__init__()
        self.is_fast = is_fast  # whether copies are over before anybody looks
        self.keeps_sources = (
            True  # until they are copied, as PyTorch keeps memory, but not storages
        )

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        super().copy(target, source if self.keeps_sources else source.clone(), stream)

    def is_done(self, event: Event) -> bool:
        if self.is_fast:
            self.run()
        return super().is_done(event)

    def record_event(self, stream: Stream) -> Event:
        event = super().record_event(stream)
        self.compute.run()
        return event

    def wait_event(self, stream: Stream, event: Event) -> None:
        super().wait_event(stream, event)
        if stream is self.compute:
            self.run()


def device_offload(
    directory: Any, *, is_fast: bool = True, **knobs: Any
) -> sh.offload.ActivationOffload:
    """An offloading context to which every tensor lies on a GPU."""
    offload = small_offload(directory, **knobs)
    store = offload.store
    copier = DeviceCopier(HostStreams(is_fast=is_fast))
    store.devices = DeviceLane(copier, store.writes, store.payloads)
    return offload


def require_bit_equal(
    directory: Any, leaves: list[torch.Tensor], step: Callable[[], torch.Tensor], **knobs: Any
) -> sh.offload.OffloadReport:
    expected = gradients_of(leaves, step)
    offload = device_offload(directory, **knobs)
    for _ in range(2):
        with offload:
            require_equal(expected, gradients_of(leaves, step))
    report = settled_report(offload)
    assert report.live_bytes == 0
    assert report.disk_bytes == 0
    return report


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_gradients_are_the_same_bits(case: Any, is_fast: bool, tmp_path: Path) -> None:
    x = leaf(64, 192) if case is unbound_qkv else leaf(64, 64)
    require_bit_equal(tmp_path, [x], lambda: case(x), is_fast=is_fast)


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_modules_too(name: str, is_fast: bool, tmp_path: Path) -> None:
    make, shape = MODULES[name]
    torch.manual_seed(0)
    module = make()
    x = leaf(*shape)

    def step() -> torch.Tensor:
        out = module(x)
        return (out[0] if isinstance(out, tuple) else out).square().sum()

    report = require_bit_equal(tmp_path, [x, *module.parameters()], step, is_fast=is_fast)
    assert report.counts.offloaded > 0


def _chain(x: torch.Tensor, layers: int = 12) -> torch.Tensor:
    h = x * 2
    for _ in range(layers):
        h = h.sin()
    return h.sum()


def test_through_a_disk_within_a_budget(tmp_path: Path) -> None:
    x = leaf(128, 64)  # 32 KiB each
    report = require_bit_equal(
        tmp_path, [x], lambda: _chain(x), is_fast=False, budget="256KiB", policy="all"
    )
    assert report.counts.peak_live_bytes <= 256 * 1024
    assert report.counts.written_bytes > 0
    assert report.counts.read_bytes > 0


def test_copies_under_way_are_bounded(tmp_path: Path) -> None:
    x = leaf(128, 64)
    offload = device_offload(tmp_path, is_fast=False, in_flight="96KiB")
    with offload:
        loss = _chain(x)
        assert offload.store._storing_bytes() <= 96 * 1024
        loss.backward()
    settled_report(offload)


def test_what_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    """Backward begins while every copy is still under way."""
    x = leaf(64, 64)
    expected = gradients_of([x], lambda: _chain(x, 3))
    x.grad = None
    offload = device_offload(tmp_path, is_fast=False)
    assert offload.store.devices is not None
    offload.store.devices.copier.backend.keeps_sources = False  # type: ignore[attr-defined]
    with offload:
        loss = _chain(x, 3)
        assert offload.store.counts.offloaded == 3
        assert offload.store.counts.written_bytes == 0
        loss.backward()
    require_equal(expected, [x.grad])
    assert settled_report(offload).counts.forwarded > 0


def test_a_dropped_graph_gives_everything_back(tmp_path: Path) -> None:
    x = leaf(64, 64)
    offload = device_offload(tmp_path, is_fast=False)
    with offload:
        loss = _chain(x)
        del loss
    gc.collect()
    report = settled_report(offload)
    assert report.live_bytes == 0
    assert report.disk_bytes == 0


def test_a_graph_can_be_used_again(tmp_path: Path) -> None:
    x = leaf(64, 64)
    with device_offload(tmp_path):
        loss = _chain(x)
        first = torch.autograd.grad(loss, x, retain_graph=True)
        second = torch.autograd.grad(loss, x)
    require_equal(first, second)


def test_the_same_tensor_leaves_once(tmp_path: Path) -> None:
    x = leaf(64, 64)
    offload = device_offload(tmp_path)
    with offload:
        h = x * 2
        loss = (h.sin() + h.cos() + h.view(-1).exp().sum()).sum()
        counts = offload.store.counts
        # sin and cos save h itself; exp saves its result.
        assert counts.deduplicated == 1
        loss.backward()
    settled_report(offload)


@pytest.mark.parametrize("is_fast", [True, False])
def test_views_of_one_tensor_leave_once(is_fast: bool, tmp_path: Path) -> None:
    """Query, key and value of a fused product: one storage, one owner, one version."""
    x, w = leaf(64, 64), leaf(64, 192)

    def step() -> torch.Tensor:
        q, k, v = (x @ w).chunk(3, -1)
        return (q * k * v).sum()

    expected = gradients_of([x, w], step)
    x.grad = w.grad = None
    offload = device_offload(tmp_path, is_fast=is_fast, policy="all")
    with offload:
        loss = step()
        counts = offload.store.counts
        assert counts.deduplicated == 2
        assert counts.offloaded_bytes == 4 * 64 * (192 + 64)  # theirs, and q * k
        loss.backward()
    require_equal(expected, [x.grad, w.grad])
    settled_report(offload)


def test_views_that_count_versions_of_their_own_leave_on_their_own(tmp_path: Path) -> None:
    """`unsafe_chunk` shares memory alone: that the bytes are the same could only be read."""
    x, w = leaf(64, 64), leaf(64, 192)
    offload = device_offload(tmp_path, policy="all")
    with offload:
        q, k, v = (x @ w).unsafe_chunk(3, -1)
        loss = (q * k * v).sum()
        assert offload.store.counts.deduplicated == 0
        loss.backward()
        del q, k, v
    settled_report(offload)


def test_what_still_lives_is_not_copied_back(tmp_path: Path) -> None:
    x = leaf(64, 64)
    expected = gradients_of([x], lambda: (x * 2).sin().sum())
    x.grad = None
    offload = device_offload(tmp_path, is_fast=False, policy="all")
    with offload:
        h = x * 2
        loss = h.sin().sum()
        assert offload.store.counts.offloaded == 1
        loss.backward()  # while the copy out is under way, or was never written
    require_equal(expected, [x.grad])
    del h, loss
    counts = settled_report(offload).counts
    assert (counts.found_alive, counts.forwarded) == (1, 0)
    assert offload.store.devices is not None
    log = offload.store.devices.copier.backend.log  # type: ignore[attr-defined]
    assert len([each for each in log if each.endswith(": copy")]) == 1


def test_what_needs_no_gradient_stays(tmp_path: Path) -> None:
    x, mask = leaf(64, 64), torch.ones(64, 64)
    offload = device_offload(tmp_path)
    with offload:
        loss = (x * 2 * (mask * 1)).sum()
        assert offload.store.counts.kept == 1
        loss.backward()
    settled_report(offload)


def test_a_wrong_bit_is_found_before_it_goes_to_the_device(tmp_path: Path) -> None:
    x = leaf(64, 64)
    fault = Fault("flip", action="read", onwards=True)
    offload = device_offload(
        tmp_path, engine=lambda: faulty_engine(ThreadEngine(depth=1), [fault]), prefetch=1
    )
    with offload:
        loss = _chain(x, 3)
        offload.store.wait_until_idle()
        with pytest.raises(ActivationLostError, match=r"float32 \(64, 64\)"):
            loss.backward()


def test_a_budget_that_cannot_hold_a_buffer_is_an_error(tmp_path: Path) -> None:
    x = leaf(128, 64)
    with (
        device_offload(tmp_path, budget="16KiB", policy="all"),
        pytest.raises(OffloadBudgetError),
    ):
        _chain(x)


def test_tensors_on_other_devices_stay_where_they_are(tmp_path: Path) -> None:
    offload = small_offload(tmp_path)
    assert offload.store.devices is None
    assert offload.store.why_out_of_reach(torch.empty(4, device="meta")) == "on meta"
    assert offload.store.why_out_of_reach(torch.empty(4)) is None
    lane = device_offload(tmp_path).store
    assert lane.why_out_of_reach(torch.empty(4, device="meta")) is None


def test_training_goes_on(tmp_path: Path) -> None:
    """Three steps of an optimizer: the same parameters as with everything kept."""

    def train(offload: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            with offload:
                loss = model(torch.randn(32, 64)).square().mean()
                loss.backward()
            optimizer.step()
        return [each.detach() for each in model.parameters()]

    offload = device_offload(tmp_path)
    require_equal(train(torch.enable_grad()), train(offload))
    assert settled_report(offload).counts.offloaded > 0


def test_what_came_back_is_waited_for_by_everyone_who_uses_it(tmp_path: Path) -> None:
    """The second node may run on another stream than the first, for which the copy was waited for."""
    x = leaf(64, 64)
    offload = device_offload(tmp_path, policy="all")
    with offload:
        h = x * 2
        loss = (h.sin() + h.cos()).sum()
        del h
    offload.store.wait_until_idle()
    loss.backward()
    assert offload.store.devices is not None
    log = offload.store.devices.copier.backend.log  # type: ignore[attr-defined]
    waits = collections.Counter(each for each in log if each.startswith("compute: wait"))
    assert max(waits.values()) == 2
    settled_report(offload)


def test_packing_that_is_not_done_is_said(tmp_path: Path) -> None:
    x = leaf(64, 64)
    with device_offload(tmp_path, policy="all", compress="mask"):
        _chain(x, 3).backward()
    assert any(each.what == 'compress="mask"' for each in taken_fallbacks())
