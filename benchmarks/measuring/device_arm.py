"""Arms on a GPU: timed between two events on the device, as the host is done long before it.

What an arm starts is over when the event behind it is passed, so a sample is the device's time and not that of
launches. Arms of peers that are not installed stay in the table as such.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.measuring.answer import Answer
from benchmarks.measuring.measure import Measured, Same, Sample
from shorthaul.errors import CudaUnavailableError

Run = Callable[[], object]


def find_device() -> torch.device:
    """The current CUDA device; an error where there is none."""
    if not torch.cuda.is_available():
        raise CudaUnavailableError(
            "these questions are asked of a GPU, and PyTorch finds none that it can use."
        )
    return torch.device("cuda", torch.cuda.current_device())


@dataclass(frozen=True)
class DeviceArm:
    """One way of doing on a device the thing that is measured; `run` does it `events` times."""

    name: str
    run: Run
    device: torch.device
    events: int = 1

    @property
    def can_repeat(self) -> bool:
        """Nothing is prepared between calls."""
        return True

    def sample(self, calls: int) -> Sample:
        """Run `calls` times; the time of one event on the device."""
        with torch.cuda.device(self.device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(self.device)
            began = time.process_time()
            begin.record()
            for _ in range(calls):
                self.run()
            end.record()
            end.synchronize()
            cpu_seconds = time.process_time() - began
        count = calls * self.events
        return Sample(begin.elapsed_time(end) / 1000 / count, cpu_seconds / count)

    def result(self) -> object:
        """Run once; what came out, when it is there."""
        with torch.cuda.device(self.device):
            value = self.run()
            torch.cuda.synchronize(self.device)
        return value

    def peak_bytes(self) -> int:
        """The most memory of the device that one run takes beside what is there before."""
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        self.result()
        return max(0, torch.cuda.max_memory_allocated(self.device) - before)


@dataclass(frozen=True)
class Way:
    """An arm that may be missing: `make` imports what it needs, and returns what is timed."""

    name: str
    make: Callable[[], Run]
    events: int = 1


def compare_ways(
    answer: Answer,
    case: str,
    ways: Sequence[Way],
    *,
    baseline: str,
    same: Same,
    device: torch.device,
    has_peaks: bool = False,
    figures: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Measured]:
    """Measure those ways whose libraries are installed; the others get a row that says so."""
    arms: list[DeviceArm] = []
    missing: list[str] = []
    for way in ways:
        try:
            with torch.cuda.device(device):
                arms.append(DeviceArm(way.name, way.make(), device, way.events))
        except ImportError:
            missing.append(way.name)
    known = {name: dict(each) for name, each in (figures or {}).items()}
    if has_peaks:
        for arm in arms:
            arm.result()  # what is kept from the first run on is no peak
            known.setdefault(arm.name, {})["peak_bytes"] = float(arm.peak_bytes())
    measured = answer.compare(case, arms, baseline=baseline, same=same, figures=known)
    for name in missing:
        answer.leave_out(case, name, baseline, not_installed=1.0)
    return measured
