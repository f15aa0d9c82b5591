"""Arms on a device are timed between two events, and peers that are not installed stay visible."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch

from benchmarks.measuring.answer import Answer
from benchmarks.measuring.device_arm import DeviceArm, Way, compare_ways, find_device
from benchmarks.measuring.measure import same_bits
from shorthaul.errors import CudaUnavailableError

CPU = torch.device("cpu")


class Device:
    """A device whose clock is told by what runs: events note how far it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.milliseconds = 0.0
        self.told: list[str] = []
        self.peak_bytes = 100
        device = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                self.at = 0.0

            def record(self) -> None:
                device.told.append("record")
                self.at = device.milliseconds

            def synchronize(self) -> None:
                device.told.append("wait")

            def elapsed_time(self, other: Event) -> float:
                return other.at - self.at

        for name, value in {
            "Event": Event,
            "device": lambda _: nullcontext(),
            "synchronize": lambda _: self.told.append("synchronize"),
            "reset_peak_memory_stats": lambda _: None,
            "memory_allocated": lambda _: 100,
            "max_memory_allocated": lambda _: self.peak_bytes,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def work(self, milliseconds: float) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            self.told.append("run")
            self.milliseconds += milliseconds
            return torch.ones(1)

        return run


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def test_a_sample_is_the_devices_time_of_one_event(device: Device) -> None:
    arm = DeviceArm("an arm", device.work(6.0), CPU, events=3)
    assert arm.sample(2).wall_seconds == pytest.approx(0.002)
    assert device.told == ["synchronize", "record", "run", "run", "record", "wait"]


def test_the_peak_is_what_a_run_takes_beside_what_was_there(device: Device) -> None:
    arm = DeviceArm("an arm", device.work(1.0), CPU)
    assert arm.peak_bytes() == 0
    device.peak_bytes = 164
    assert arm.peak_bytes() == 64


def test_what_is_not_installed_is_a_row_that_says_so(device: Device) -> None:
    def absent() -> Callable[[], object]:
        raise ImportError("not here")

    answer = Answer(rounds=2, is_quick=True)
    ways = [
        Way("plain", lambda: device.work(4.0)),
        Way("peer", absent),
        Way("shorthaul", lambda: device.work(2.0)),
    ]
    compare_ways(
        answer, "a case", ways, baseline="plain", same=same_bits, device=CPU, has_peaks=True
    )
    rows = {each["arm"]: each for each in answer.rows}
    assert rows["shorthaul"]["speedup"]["median"] == pytest.approx(2.0)
    assert rows["shorthaul"]["figures"] == {"peak_bytes": 0.0}
    assert (rows["peer"]["rounds"], rows["peer"]["figures"]) == (0, {"not_installed": 1.0})


def test_other_errors_of_a_peer_are_not_hidden(device: Device) -> None:
    def broken() -> Callable[[], object]:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        compare_ways(
            Answer(),
            "a case",
            [Way("a peer", broken)],
            baseline="a peer",
            same=same_bits,
            device=CPU,
        )


def test_questions_for_a_gpu_need_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CudaUnavailableError, match="asked of a GPU"):
        find_device()
