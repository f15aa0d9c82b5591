"""The doctor's trials on a GPU: refused by name without one, and wrong numbers are found.

That they pass on a device is tested on pretended ones (`tests/pretended_cuda`).
"""

from __future__ import annotations

import pytest
import torch

from shorthaul.cli.findings import Probe, run_probe
from shorthaul.cli.probes.gpu import GPU_PROBES
from shorthaul.cli.probes.gpu.devices import find_device
from shorthaul.cli.probes.gpu.kernels import Trial
from shorthaul.errors import CudaUnavailableError, KernelMismatchError


@pytest.fixture(autouse=True)
def _no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def test_without_a_gpu_every_trial_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CudaUnavailableError, match="TRITON_INTERPRET=1 shorthaul doctor --gpu"):
        find_device()
    for probe in GPU_PROBES:
        if probe.name != "Triton":
            (finding,) = run_probe(probe)
            assert finding.status == ("warning" if probe.is_measurement else "broken")


def test_the_cpu_stands_for_the_device_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert find_device() == torch.device("cpu")


def test_a_wrong_number_is_found() -> None:
    trial, ones = Trial("gathers"), torch.ones(3)
    trial.require_equal("right", ones, ones)
    trial.require_close("right", ones, ones.double())
    with pytest.raises(KernelMismatchError, match=r"gathers \(wrong\): expected the same bits"):
        trial.require_equal("wrong", ones, torch.zeros(3))
    for wrong in (ones * 1.001, ones * float("nan")):
        with pytest.raises(KernelMismatchError, match="of the largest value off"):
            trial.require_close("wrong", wrong, ones.double())


def test_a_failed_trial_breaks_the_report() -> None:
    def look() -> None:
        raise KernelMismatchError("sums", "case", "x", "y")

    (finding,) = run_probe(Probe("Kernels", "sums", look, is_essential=True))  # type: ignore[arg-type]
    assert finding.status == "broken"
    assert "SHORTHAUL_KERNELS=torch" in finding.advice
