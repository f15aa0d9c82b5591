from __future__ import annotations

import pytest
import torch

from shorthaul.offload.codecs.compression import CodecRates
from shorthaul.offload.policy.packing_rule import AutomaticPacking, choose_packing
from shorthaul.offload.policy.simulation import Disk
from tests.offload.keep_all import gradients_of, require_equal, small_offload

FAST_CODEC = CodecRates(1.5, 1000e6, 900e6)


@pytest.mark.parametrize(
    ("disk_rate", "stall_share", "changes", "said"),
    [
        (300e6, 0.3, {}, "30% of a step is spent waiting"),
        (300e6, 0.01, {}, "keeps up: 1.0%"),
        (2000e6, 0.3, {}, "the disk is fast enough"),
        (300e6, 0.3, {"has_free_core": False}, "no core is free"),
        (2000e6, 0.0, {"is_wear_limited": True, "has_free_core": False}, "writes are limited"),
        (300e6, 0.3, {"ratio": 1.01, "is_wear_limited": True}, "only 1.01 times smaller"),
    ],
)
def test_the_rule(disk_rate, stall_share, changes, said):
    rates = CodecRates(changes.pop("ratio", FAST_CODEC.ratio), 1000e6, 900e6)
    knobs = {"is_wear_limited": False, "has_free_core": True, **changes}
    verdict = choose_packing(rates, Disk(disk_rate, disk_rate), stall_share=stall_share, **knobs)
    assert said in verdict.reason
    assert verdict.should_pack == (said.startswith("30%") or said == "writes are limited")


def test_the_slower_direction_of_the_disk_decides():
    verdict = choose_packing(
        FAST_CODEC,
        Disk(2000e6, 300e6),
        stall_share=0.2,
        is_wear_limited=False,
        has_free_core=True,
    )
    assert verdict.should_pack


def make_packing(disk: Disk | None, *, is_wear_limited: bool = False) -> AutomaticPacking:
    packing = AutomaticPacking(lambda: disk, is_wear_limited=is_wear_limited)
    assert packing.wants_sample
    packing.note_saved(torch.arange(10))  # no floating-point numbers
    assert packing.wants_sample
    packing.note_saved(torch.zeros(2**16))
    assert not packing.wants_sample
    return packing


def test_it_stays_off_while_the_disk_keeps_up_and_on_once_it_was_worth_it(monkeypatch):
    monkeypatch.setattr("shorthaul.offload.policy.packing_rule.has_free_core", lambda: True)
    packing = make_packing(Disk(1e6, 1e6))
    assert packing.learn(step_seconds=1.0, stall_seconds=0.01) is None
    codec = packing.learn(step_seconds=1.0, stall_seconds=0.5)
    assert codec is not None
    assert codec.is_lossless
    assert packing.learn(step_seconds=1.0, stall_seconds=0.0) is codec


def test_without_a_measured_disk_nothing_changes():
    packing = make_packing(None)
    assert packing.learn(step_seconds=1.0, stall_seconds=0.5) is None
    assert packing.verdict.reason == "no step is over yet"


def test_a_daily_limit_switches_it_on_and_gradients_stay_bit_equal(tmp_path):
    x = torch.randn(64, 64).requires_grad_()

    def step() -> torch.Tensor:
        h = x.relu()
        for _ in range(4):
            h = torch.dropout(h.relu(), 0.5, True)
        return h.square().sum()

    expected = gradients_of([x], step)
    offload = small_offload(tmp_path, compress="auto", endurance={"daily": "1GB"})
    for _ in range(3):
        with offload:
            require_equal(expected, gradients_of([x], step))
    report = offload.report()
    assert report.codec in ("lz4", "mask")
    assert report.packing is not None
    assert "writes are limited" in report.packing
    assert report.counts.compressed > 0
    unlimited = small_offload(tmp_path, compress="auto")
    with unlimited:
        require_equal(expected, gradients_of([x], step))
    assert unlimited.report().counts.compressed == 0


def test_a_dropped_micro_batch_is_no_step(tmp_path):
    x = torch.randn(64, 64).requires_grad_()
    offload = small_offload(tmp_path, compress="auto")
    with offload:
        for index in range(4):
            offload.micro_batch(index)
            dropped = (x * 2).sin().sum()
            del dropped
            offload.micro_batch(index + 100)
            (x * 3).sin().sin().sin().sum().backward()
    assert offload.report().packing is not None


def test_tensors_on_a_device_are_no_sample_for_a_codec_of_the_cpu() -> None:
    packing = AutomaticPacking(lambda: None, is_wear_limited=True)
    packing.note_saved(torch.empty(4096, dtype=torch.float32, device="meta"))
    assert packing.wants_sample
    assert packing.learn(step_seconds=1.0, stall_seconds=1.0) is None
